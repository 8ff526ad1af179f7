# SPDX-License-Identifier: Apache-2.0
"""The tree against the paper's heap and against exhaustive search."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from references import best_total, heap_tree, path_probability, usable
from sglang.kernels.ops.ddtree.tree_build import (
    DraftTree,
    pack_mask,
    tree_build,
    tree_build_reference,
    unpack_mask,
)

BUDGETS = [1, 2, 31, 32, 33, 64, 256]


@pytest.fixture(params=["torch", "dispatched"])
def build(request):
    """The torch reference, and whatever the facade runs on this machine."""
    return tree_build_reference if request.param == "torch" else tree_build


def descending(rng: np.random.Generator, depth: int, width: int) -> np.ndarray:
    """Log-probabilities of the ``width`` best of a peaked random vocabulary."""
    logits = rng.normal(size=(depth, max(width, 50))) * 2.5
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.sort(-logprobs, axis=-1)[:, :width].astype(np.float32)


def grow(build, logprobs: np.ndarray, budget: int, *, spine: bool) -> DraftTree:
    batch, depth, width = logprobs.shape
    ids = torch.arange(depth * width).view(1, depth, width).repeat(batch, 1, 1) + 1000
    tree = DraftTree.empty(batch, budget + 1, "cpu")
    for tensor in tree.tensors():
        tensor.fill_(-77)  # the operator must write every element
    build(
        ids,
        torch.from_numpy(logprobs),
        torch.arange(batch),
        torch.arange(batch) * 10,
        tree,
        spine=spine,
    )
    return tree


def check_against_heap(tree: DraftTree, logprobs: np.ndarray, *, spine: bool) -> None:
    batch, num_nodes = tree.tokens.shape
    width = logprobs.shape[-1]
    for b in range(batch):
        expected = heap_tree(logprobs[b], num_nodes - 1, spine=spine)
        used = int(tree.num_nodes[b])
        assert used == len(expected)
        sees = np.zeros((num_nodes, num_nodes), dtype=bool)
        children: dict[int, list[int]] = {}
        for i, node in enumerate(expected):
            assert int(tree.parents[b, i]) == node.parent
            assert int(tree.depths[b, i]) == len(node.path)
            assert int(tree.positions[b, i]) == 10 * b + len(node.path)
            if i == 0:
                assert int(tree.tokens[b, i]) == b
            else:
                depth, rank = len(node.path) - 1, node.path[-1]
                assert int(tree.tokens[b, i]) == 1000 + depth * width + rank
                children.setdefault(node.parent, []).append(i)
                sees[i] = sees[node.parent]
            sees[i, i] = True
        for i in range(used, num_nodes):
            sees[i, [0, i]] = True
            assert int(tree.tokens[b, i]) == 0
            assert int(tree.parents[b, i]) == -1
            assert int(tree.depths[b, i]) == 0
            assert int(tree.positions[b, i]) == 10 * b
        first = np.full(num_nodes, -1)
        sibling = np.full(num_nodes, -1)
        for parent, nodes in children.items():
            first[parent] = nodes[0]
            for elder, younger in pairwise(nodes):
                sibling[elder] = younger
        assert tree.first_child[b].tolist() == first.tolist()
        assert tree.next_sibling[b].tolist() == sibling.tolist()
        assert (unpack_mask(tree.mask_words[b], num_nodes).numpy() == sees).all()


@pytest.mark.parametrize("spine", [True, False])
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("depth,width", [(7, 8), (15, 4), (1, 8), (15, 64)])
def test_same_nodes_in_the_same_order_as_a_heap(build, budget, depth, width, spine):
    rng = np.random.default_rng(budget * 100 + depth)
    logprobs = np.stack([descending(rng, depth, width) for _ in range(5)])
    tree = grow(build, logprobs, budget, spine=spine)
    check_against_heap(tree, logprobs, spine=spine)


@pytest.mark.parametrize("spine", [True, False])
@pytest.mark.parametrize("budget", BUDGETS)
def test_equal_scores_break_by_parent_then_rank(build, budget, spine):
    rng = np.random.default_rng(budget)
    # Few distinct values, zeros among them: nearly every pop is a tie.
    values = rng.choice(np.float32([0.0, -0.5, -1.0]), size=(4, 7, 6))
    logprobs = -np.sort(-values, axis=-1)
    logprobs[0] = -1.0
    logprobs[1] = 0.0
    tree = grow(build, logprobs, budget, spine=spine)
    check_against_heap(tree, logprobs, spine=spine)


@pytest.mark.parametrize("spine", [True, False])
@pytest.mark.parametrize("budget", [1, 5, 33])
def test_impossible_candidates_never_enter(build, budget, spine):
    rng = np.random.default_rng(3)
    logprobs = np.stack([descending(rng, 6, 5) for _ in range(6)])
    logprobs[0, :, 2:] = -np.inf  # a vocabulary smaller than K
    logprobs[1, 3] = -np.inf  # nothing below depth 3
    logprobs[2] = -np.inf  # nothing at all
    logprobs[3, :, 1:] = -np.inf  # a chain
    logprobs[4, 2, 1:] = np.nan
    logprobs[5, 0, 0] = 1e-6  # rounding of value - logsumexp
    tree = grow(build, logprobs, budget, spine=spine)
    check_against_heap(tree, logprobs, spine=spine)
    assert int(tree.num_nodes[2]) == 1


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("seed", range(6))
def test_no_closed_set_has_a_greater_total_probability(build, budget, seed):
    rng = np.random.default_rng(seed)
    logprobs = descending(rng, 3, 2)[None] * np.float32(1 + seed / 2)
    for spine in (False, True):
        tree = grow(build, logprobs, budget, spine=spine)
        lists = usable(logprobs[0])
        nodes = heap_tree(logprobs[0], budget, spine=spine)
        assert int(tree.num_nodes[0]) == len(nodes)
        paths = {0: ()}
        for i in range(1, len(nodes)):
            rank = (int(tree.tokens[0, i]) - 1000) % 2
            paths[i] = (*paths[int(tree.parents[0, i])], rank)
        found = sum(path_probability(p, lists) for i, p in paths.items() if i)
        chain = {(0,) * d for d in (1, 2, 3)} if spine and budget >= 3 else set()
        assert chain <= set(paths.values())
        assert found == pytest.approx(best_total(logprobs[0], budget, chain), rel=1e-5)


@pytest.mark.parametrize("budget", [7, 8, 31])
def test_the_greedy_chain_is_in_the_tree(build, budget):
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(64, 7, 50)) * 0.1  # the chain is an unlikely path
    logprobs = flat - np.log(np.exp(flat).sum(-1, keepdims=True))
    logprobs = -np.sort(-logprobs, axis=-1)[:, :, :8].astype(np.float32)
    with_chain = grow(build, logprobs, budget, spine=True)
    without = grow(build, logprobs, budget, spine=False)
    for b in range(64):
        node, depth = 0, 0
        while int(with_chain.first_child[b, node]) >= 0:
            node = int(with_chain.first_child[b, node])
            assert int(with_chain.tokens[b, node]) == 1000 + 8 * depth
            depth += 1
        assert depth == 7
    assert int(without.depths.max()) < 7  # or this test could not fail


@pytest.mark.parametrize("num_nodes", [1, 31, 32, 33, 64, 65, 257])
def test_mask_words_round_trip(num_nodes):
    generator = torch.Generator().manual_seed(num_nodes)
    sees = torch.rand(3, num_nodes, num_nodes, generator=generator) < 0.5
    words = pack_mask(sees)
    assert words.shape == (3, num_nodes, -(-num_nodes // 32))
    assert torch.equal(unpack_mask(words, num_nodes), sees)
    # Bit j of word j // 32, from the other side: numpy's own bit order.
    bits = np.unpackbits(
        words.numpy().view(np.uint8), axis=-1, bitorder="little", count=num_nodes
    )
    assert (bits.astype(bool) == sees.numpy()).all()


def test_bad_shapes_are_refused():
    tree = DraftTree.empty(1, 4, "cpu")
    ids = torch.zeros(1, 3, 2, dtype=torch.int64)
    logprobs = torch.zeros(1, 3, 2)
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="both ids"):
        tree_build(ids, logprobs[:, :2], one, one, tree)
    with pytest.raises(TypeError, match="float32"):
        tree_build(ids, logprobs.double(), one, one, tree)
    with pytest.raises(ValueError, match="N=258"):
        tree_build(ids, logprobs, one, one, DraftTree.empty(1, 258, "cpu"))
    with pytest.raises(ValueError, match="prefix_lens"):
        tree_build(ids, logprobs, one, one.int(), tree)

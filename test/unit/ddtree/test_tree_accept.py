# SPDX-License-Identifier: Apache-2.0
"""The accept walk and the KV move against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sglang.kernels.ops.ddtree.kv_commit import KVRows, kv_commit, kv_commit_reference
from sglang.kernels.ops.ddtree.tree_accept import (
    AcceptedPath,
    tree_accept,
    tree_accept_reference,
)
from sglang.kernels.ops.ddtree.tree_build import DraftTree, tree_build_reference

DEPTH = 7


@pytest.fixture(params=["torch", "dispatched"])
def accept(request):
    return tree_accept_reference if request.param == "torch" else tree_accept


@pytest.fixture(params=["torch", "dispatched"])
def commit(request):
    return kv_commit_reference if request.param == "torch" else kv_commit


def random_trees(rng, batch: int, budget: int, vocab: int = 12) -> DraftTree:
    logits = torch.from_numpy(rng.normal(size=(batch, DEPTH, vocab)) * 2).float()
    values, ids = logits.log_softmax(-1).topk(4, dim=-1)
    tree = DraftTree.empty(batch, budget + 1, "cpu")
    roots = torch.from_numpy(rng.integers(0, vocab, size=batch))
    tree_build_reference(ids, values, roots, torch.arange(batch) * 3, tree)
    return tree


def walk(tree: DraftTree, b: int, target: torch.Tensor) -> list[int]:
    """Down the child and sibling links, one comparison at a time."""
    path = [0]
    while True:
        child = int(tree.first_child[b, path[-1]])
        while child >= 0 and int(tree.tokens[b, child]) != int(target[b, path[-1]]):
            child = int(tree.next_sibling[b, child])
        if child < 0:
            return path
        path.append(child)


@pytest.mark.parametrize("budget", [1, 2, 31, 32, 33, 64, 256])
@pytest.mark.parametrize("agreement", [0.0, 0.7, 1.0])
def test_the_walk_follows_the_links(accept, budget, agreement):
    rng = np.random.default_rng(budget)
    batch = 40
    tree = random_trees(rng, batch, budget)
    target = torch.from_numpy(rng.integers(0, 12, size=(batch, budget + 1)))
    # Make the target agree with a random child of most nodes, so paths get long.
    for b in range(batch):
        for child in range(1, int(tree.num_nodes[b])):
            if rng.random() < agreement:
                target[b, int(tree.parents[b, child])] = tree.tokens[b, child]
    path = AcceptedPath.empty(batch, DEPTH + 1, "cpu")
    for tensor in path.tensors():
        tensor.fill_(-77)
    prefix = torch.arange(batch) * 3
    accept(tree, target, prefix, path)

    lengths = set()
    for b in range(batch):
        nodes = walk(tree, b, target)
        lengths.add(len(nodes))
        pad = DEPTH + 1 - len(nodes)
        tokens = [int(tree.tokens[b, i]) for i in nodes[1:]]
        bonus = int(target[b, nodes[-1]])
        assert path.nodes[b].tolist() == nodes + [-1] * pad
        assert int(path.commit_lens[b]) == len(nodes)
        assert int(path.bonus[b]) == bonus
        assert path.tokens[b].tolist() == tokens + [bonus] + [0] * pad
        assert int(path.new_seq_lens[b]) == 3 * b + len(nodes)
    if agreement == 0.7 and budget >= 31:
        assert len(lengths) > 2  # or the case says little


@pytest.mark.parametrize("budget", [9, 16, 32])
def test_a_tree_accepts_at_least_what_its_greedy_chain_would(accept, budget):
    rng = np.random.default_rng(1)
    batch = 2000
    tree = random_trees(rng, batch, budget, vocab=6)
    target = torch.from_numpy(rng.integers(0, 6, size=(batch, budget + 1)))
    agree = torch.from_numpy(rng.random((batch, budget + 1)) < 0.6)
    first = tree.first_child.long()
    likely = tree.tokens.gather(1, first.clamp(min=0))
    target = torch.where(agree & (first >= 0), likely, target)
    path = AcceptedPath.empty(batch, DEPTH + 1, "cpu")
    accept(tree, target, torch.zeros(batch, dtype=torch.int64), path)

    longer = 0
    for b in range(batch):
        node, chain = 0, 1
        while first[b, node] >= 0 and tree.tokens[b, first[b, node]] == target[b, node]:
            node = int(first[b, node])
            chain += 1
        assert int(path.commit_lens[b]) >= chain
        longer += int(path.commit_lens[b]) > chain
    assert longer > 0


def test_a_padding_node_is_never_accepted(accept):
    ids = torch.tensor([[[5, 6]]])
    logprobs = torch.tensor([[[-0.1, float("-inf")]]])
    tree = DraftTree.empty(1, 6, "cpu")
    zero = torch.zeros(1, dtype=torch.int64)
    tree_build_reference(ids, logprobs, zero, zero, tree)
    path = AcceptedPath.empty(1, 2, "cpu")
    # The padding carries token 0, and so does every choice of the target.
    accept(tree, torch.zeros(1, 6, dtype=torch.int64), zero, path)
    assert path.nodes.tolist() == [[0, -1]]
    assert path.tokens.tolist() == [[0, 0]]
    assert int(path.commit_lens) == 1


@pytest.mark.parametrize("budget", [1, 8, 33, 256])
@pytest.mark.parametrize("row", [(576,), (3, 5), (1,)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_rows_of_the_path_come_to_the_front(commit, budget, row, dtype):
    rng = np.random.default_rng(budget)
    batch, columns = 4, min(8, budget + 1)
    num_slots = batch * (budget + 1) + 9
    buffers = [
        torch.from_numpy(rng.integers(0, 250, size=(num_slots, *row))).to(dtype)
        for _ in range(3)
    ]
    expected = [buffer.clone() for buffer in buffers]
    slots = torch.from_numpy(rng.permutation(num_slots)[: batch * (budget + 1)])
    slots = slots.view(batch, budget + 1)
    nodes = torch.full((batch, columns), -1, dtype=torch.int32)
    lens = torch.tensor([1, columns, max(1, columns // 2), columns], dtype=torch.int32)
    for b in range(batch):
        length = int(lens[b])
        rest = np.sort(rng.choice(np.arange(1, budget + 1), length - 1, replace=False))
        # A path of consecutive nodes shifted by one overlaps itself everywhere.
        if b == 1 and budget > columns:
            rest = np.arange(2, length + 1)
        nodes[b, :length] = torch.tensor([0, *rest], dtype=torch.int32)
        for buffer in expected:
            before = buffer.clone()
            for j in range(1, length):
                buffer[slots[b, j]] = before[slots[b, int(nodes[b, j])]]
    commit(KVRows.of(buffers), slots, nodes, lens)
    for buffer, wanted in zip(buffers, expected, strict=True):
        assert torch.equal(buffer, wanted)


def test_rows_must_be_dense():
    with pytest.raises(ValueError, match="dense"):
        KVRows.of([torch.zeros(4, 6)[:, :3]])
    with pytest.raises(ValueError, match="no buffer"):
        KVRows.of([])

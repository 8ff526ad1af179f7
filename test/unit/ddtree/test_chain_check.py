# SPDX-License-Identifier: Apache-2.0
"""The in-step check against a chain walked in plain Python; it must also find what it looks for."""

from __future__ import annotations

import pytest
import torch
from sglang.kernels.ops.ddtree.tree_accept import AcceptedPath, tree_accept_reference
from sglang.kernels.ops.ddtree.tree_build import DraftTree, tree_build_reference
from sglang.srt.speculative.ddtree.chain_check import ChainCheck

BATCH, DRAFTED, CANDIDATES, VOCAB = 64, 7, 4, 6


def verified(budget: int, *, spine: bool, seed: int = 0):
    """Trees of a small vocabulary, a target that often follows them, and what is accepted."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(BATCH, DRAFTED, VOCAB, generator=generator)
    values, ids = logits.log_softmax(-1).topk(CANDIDATES)
    prefix_lens = torch.randint(0, 50, (BATCH,), generator=generator)
    tree = DraftTree.empty(BATCH, budget + 1, "cpu")
    roots = torch.zeros(BATCH, dtype=torch.int64)
    tree_build_reference(ids, values, roots, prefix_lens, tree, spine=spine)
    chosen = torch.randint(0, VOCAB, (BATCH, budget + 1), generator=generator)
    # As a good drafter's target would: mostly the best candidate of the next position.
    best = ids[:, :, 0].gather(1, tree.depths.long().clamp(max=DRAFTED - 1))
    follows = torch.rand(BATCH, budget + 1, generator=generator) < 0.8
    chosen = torch.where(follows, best, chosen)
    path = AcceptedPath.empty(BATCH, DRAFTED + 1, "cpu")
    tree_accept_reference(tree, chosen, prefix_lens, path)
    return ids[:, :, 0], tree, chosen, path


def accepted_by_the_chain(chain, tree, chosen) -> list[int]:
    lengths = []
    for b in range(BATCH):
        nodes = {
            (int(p), int(t)): n
            for n, (p, t) in enumerate(zip(tree.parents[b], tree.tokens[b], strict=True))
            if p >= 0
        }
        node, length = 0, 0
        for token in chain[b].tolist():
            if chosen[b, node] != token:
                break
            length += 1
            if (node, token) not in nodes:
                break
            node = nodes[node, token]
        lengths.append(length)
    return lengths


@pytest.mark.parametrize(("budget", "spine"), [(7, True), (8, True), (20, True), (20, False), (5, True), (3, False)])
def test_counts_are_those_of_a_plain_walk(budget, spine):
    check = ChainCheck("cpu")
    expected = 0
    for seed in range(5):
        chain, tree, chosen, path = verified(budget, spine=spine, seed=seed)
        check.observe(chain, tree, chosen, path)
        by_chain = accepted_by_the_chain(chain, tree, chosen)
        expected += sum(a > c - 1 for a, c in zip(by_chain, path.commit_lens.tolist(), strict=True))
    assert check.counts() == {"states": 5 * BATCH, "violations": expected}
    # A whole chain in the tree is never beaten; a cut one is, now and then.
    assert (expected == 0) == (spine and budget >= DRAFTED)


def test_a_walk_that_stops_too_soon_is_found():
    chain, tree, chosen, path = verified(20, spine=True)
    long = path.commit_lens > 2
    assert long.any()
    path.commit_lens -= long.int()
    check = ChainCheck("cpu")
    check.observe(chain, tree, chosen, path)
    assert 0 < check.counts()["violations"] <= int(long.sum())

# SPDX-License-Identifier: Apache-2.0
"""The dense masks against the reader of the attention backend, and the self-test against backends that err."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang.kernels.ops.ddtree.tree_build import (
    DraftTree,
    tree_build_reference,
    unpack_mask,
)
from sglang.srt.speculative.ddtree.dense_mask import dense_mask_for, write_dense_mask
from sglang.srt.speculative.ddtree.self_test import require_pass, run_self_test
from sglang.srt.speculative.eagle_utils import TreeMaskMode


def random_tree(batch: int, budget: int, prefix_lens: torch.Tensor) -> DraftTree:
    generator = torch.Generator().manual_seed(budget)
    logits = torch.randn(batch, 7, 30, generator=generator) * 2
    values, ids = logits.log_softmax(-1).topk(6)
    tree = DraftTree.empty(batch, budget + 1, "cpu")
    roots = torch.zeros(batch, dtype=torch.int64)
    tree_build_reference(ids, values, roots, prefix_lens, tree)
    return tree


@pytest.mark.parametrize("budget", [1, 31, 32, 64])
def test_full_rows_hold_the_tree_after_the_prefix(budget):
    prefix_lens = torch.tensor([0, 5, 131])
    nodes = budget + 1
    tree = random_tree(3, budget, prefix_lens)
    size = int(((prefix_lens + nodes) * nodes).sum())
    # What an earlier step left, other prefixes and other trees.
    mask = torch.zeros(size + 7, dtype=torch.uint8)
    write_dense_mask(tree, prefix_lens, mask, TreeMaskMode.FULL_MASK)
    sees = unpack_mask(tree.mask_words, nodes)
    start = 0
    for b, prefix in enumerate(prefix_lens.tolist()):
        rows = mask[start : start + nodes * (prefix + nodes)].view(nodes, -1).bool()
        assert rows[:, :prefix].all()
        assert torch.equal(rows[:, prefix:], sees[b])
        start += nodes * (prefix + nodes)
    assert (mask[start:] == 1).all()


def test_short_rows_hold_the_tree_alone():
    prefix_lens = torch.tensor([3, 0])
    tree = random_tree(2, 20, prefix_lens)
    mask = torch.full((2 * 21 * 21,), 9, dtype=torch.uint8)
    write_dense_mask(tree, prefix_lens, mask, TreeMaskMode.QLEN_ONLY)
    assert torch.equal(mask.view(2, 21, 21).bool(), unpack_mask(tree.mask_words, 21))
    assert mask.max() == 1


def test_the_backend_s_own_buffer_is_used_while_it_fits():
    prefix_lens = torch.tensor([4, 9])
    tree = random_tree(2, 8, prefix_lens)
    buffer = torch.ones(2 * 9 * 64, dtype=torch.bool)
    backend = SimpleNamespace(
        verify_mask=SimpleNamespace(
            buffer=buffer, mode=TreeMaskMode.FULL_MASK, fits=lambda bs: bs <= 2
        )
    )
    keys = int(prefix_lens.sum()) + 2 * 9
    mask = dense_mask_for(backend, tree, prefix_lens, keys)
    assert mask.data_ptr() == buffer.data_ptr() and mask.numel() == keys * 9
    backend.verify_mask.fits = lambda bs: False
    other = dense_mask_for(backend, tree, prefix_lens, keys)
    assert other.data_ptr() != buffer.data_ptr()
    assert torch.equal(other, mask)


class TinyAttention:
    """One attention layer over a tree and its cached prefix, right or wrong in a chosen way."""

    def __init__(self, fault: str | None = None):
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(64, 16, generator=generator)
        self.positions = torch.randn(16, 16, generator=generator)
        self.head = torch.randn(16, 64, generator=generator)
        self.fault = fault
        self.cache = torch.empty(0, 16)

    def __call__(self, tree: DraftTree, prefix_len: int) -> torch.Tensor:
        nodes = tree.tokens.shape[1]
        sees = unpack_mask(tree.mask_words, nodes)[0]
        if self.fault == "chain":
            sees = torch.ones(nodes, nodes, dtype=torch.bool).tril()
        elif self.fault == "all":
            sees = torch.ones(nodes, nodes, dtype=torch.bool)
        elif self.fault == "self":
            sees = torch.eye(nodes, dtype=torch.bool)
        x = self.embedding[tree.tokens[0]] + self.positions[tree.positions[0]]
        if self.fault == "constant":
            return torch.zeros(nodes, 64)
        keys = self.cache = torch.cat([self.cache[:prefix_len], x])
        sees_prefix = torch.full((nodes, prefix_len), self.fault != "no prefix")
        sees = torch.cat([sees_prefix, sees], dim=1)
        scores = (x @ keys.T / 16).masked_fill(~sees, float("-inf"))
        noise = 1e-3 * torch.from_numpy(
            np.random.default_rng(1).normal(size=(nodes, 64))
        )
        return scores.softmax(-1) @ keys @ self.head + noise


@pytest.mark.parametrize("num_nodes", [3, 4, 9, 33])
def test_a_backend_that_applies_the_mask_passes(num_nodes):
    result = run_self_test(
        TinyAttention(), num_nodes=num_nodes, vocab_size=64, device="cpu"
    )
    assert result.passed
    require_pass(result, "some_backend", dummy_weights=False)


@pytest.mark.parametrize("fault", ["chain", "all", "constant"])
def test_a_backend_that_ignores_the_mask_stops_the_server(fault):
    result = run_self_test(
        TinyAttention(fault), num_nodes=9, vocab_size=64, device="cpu"
    )
    assert not result.passed
    with pytest.raises(RuntimeError, match=r"some_backend.*--attention-backend"):
        require_pass(result, "some_backend", dummy_weights=False)
    # Dummy weights excuse only a target in which nothing can be told.
    if fault == "constant":
        require_pass(result, "some_backend", dummy_weights=True)
        return
    with pytest.raises(RuntimeError, match="some_backend"):
        require_pass(result, "some_backend", dummy_weights=True)


@pytest.mark.parametrize("fault", ["self", "no prefix"])
def test_a_backend_that_hides_what_a_node_sees_stops_the_server(fault):
    result = run_self_test(
        TinyAttention(fault), num_nodes=9, vocab_size=64, device="cpu"
    )
    with pytest.raises(RuntimeError):
        require_pass(result, "some_backend", dummy_weights=False)

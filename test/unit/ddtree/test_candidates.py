# SPDX-License-Identifier: Apache-2.0
"""What goes into a tree (candidates and log-probabilities) and what a commit may move."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.mem_cache.memory_pool import (
    MHATokenToKVPool,
    MLATokenToKVPool,
    MLATokenToKVPoolFP4,
)
from sglang.srt.models import dflash
from sglang.srt.speculative.ddtree import candidates
from sglang.srt.speculative.ddtree.candidates import CandidateSampler
from sglang.srt.speculative.ddtree.kv_rows import kv_rows_of

BLOCK, HIDDEN = 4, 16


@pytest.fixture
def one_rank(monkeypatch):
    for module in (candidates, dflash):
        monkeypatch.setattr(module, "get_parallel", lambda: SimpleNamespace(tp_size=1))


def head(vocab: int, padded: int) -> SimpleNamespace:
    """An LM head whose padding rows would win if they were looked at."""
    weight = torch.randn(padded, HIDDEN, generator=torch.Generator().manual_seed(vocab))
    weight[vocab:] *= 100
    return SimpleNamespace(weight=weight, org_vocab_size=vocab, quant_method=None)


@pytest.mark.parametrize("vocab,topk", [(50, 8), (50, 1), (8, 8), (5, 8)])
def test_candidates_are_the_best_under_the_whole_vocabulary(one_rank, vocab, topk):
    lm_head = head(vocab, 64)
    sampler = CandidateSampler(
        lm_head=lm_head, block_size=BLOCK, candidates=topk, max_bs=5, device="cpu"
    )
    hidden = torch.randn(3 * BLOCK, HIDDEN, generator=torch.Generator().manual_seed(1))
    sampler(hidden)

    drafted = hidden.view(3, BLOCK, HIDDEN)[:, 1:]
    logprobs = (drafted @ lm_head.weight[:vocab].T).log_softmax(-1)
    usable = min(topk, vocab)
    values, ids = logprobs.topk(usable)
    assert torch.equal(sampler.ids[:3, :, :usable], ids)
    torch.testing.assert_close(sampler.logprobs[:3, :, :usable], values)
    # More candidates than tokens: the rest can never enter a tree.
    assert torch.isneginf(sampler.logprobs[:, :, usable:]).all()
    assert torch.isneginf(sampler.logprobs[3:]).all()


@pytest.mark.parametrize(
    "vocab,ranks,shard,smallest", [(512, 2, 256, 256), (100, 4, 32, 4), (96, 4, 32, 1)]
)
def test_every_rank_can_name_its_candidates(monkeypatch, vocab, ranks, shard, smallest):
    monkeypatch.setattr(
        candidates, "get_parallel", lambda: SimpleNamespace(tp_size=ranks)
    )
    lm_head = SimpleNamespace(
        org_vocab_size=vocab,
        shard_indices=SimpleNamespace(num_org_elements_padded=shard),
    )
    assert candidates._smallest_shard(lm_head) == smallest


def pool_of(cls, **attributes):
    pool = object.__new__(cls)
    for name, value in attributes.items():
        setattr(pool, name, value)
    return pool


def test_rows_of_the_two_kinds_of_pool():
    latent = [torch.zeros(8, 1, 576) for _ in range(3)]
    rows = kv_rows_of(pool_of(MLATokenToKVPool, kv_buffer=latent))
    assert rows.row_bytes.tolist() == [576 * 4] * 3
    assert rows.addresses.tolist() == [buffer.data_ptr() for buffer in latent]

    keys = [torch.zeros(8, 2, 32) for _ in range(2)]
    values = [torch.zeros(8, 2, 16) for _ in range(2)]
    pool = pool_of(MHATokenToKVPool, k_buffer=keys, v_buffer=values, use_hnd=False)
    rows = kv_rows_of(pool)
    assert rows.row_bytes.tolist() == [256, 256, 128, 128]


def test_a_pool_of_another_layout_is_refused():
    keys = [torch.zeros(8, 2, 32)]
    plain = dict(k_buffer=keys, v_buffer=keys)
    with pytest.raises(ValueError, match="MHATokenToKVPool"):
        kv_rows_of(pool_of(MHATokenToKVPool, **plain, use_hnd=True))
    with pytest.raises(ValueError, match="one dense row"):
        scaled = dict(**plain, use_hnd=False, k_scale_buffer=keys)
        kv_rows_of(pool_of(MHATokenToKVPool, **scaled))

    # Rows of packed values here, their scales elsewhere.
    with pytest.raises(ValueError, match="MLATokenToKVPoolFP4"):
        kv_rows_of(pool_of(MLATokenToKVPoolFP4, kv_buffer=keys))
    with pytest.raises(ValueError, match="object"):
        kv_rows_of(object())

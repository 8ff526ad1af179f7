# SPDX-License-Identifier: Apache-2.0
"""Penalties and the least length of an answer, in the verifies of DFLASH and DDTREE."""

from __future__ import annotations

import inspect
from array import array
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch
from packaging.version import Version
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPenalizerOrchestrator,
    BatchedPresencePenalizer,
    BatchedRepetitionPenalizer,
)
from sglang.srt.sampling.penaltylib import repetition_penalty as repetition_module
from sglang.srt.speculative.ddtree import penalties
from sglang.srt.speculative.ddtree.penalties import count_output_tokens
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_utils import apply_dflash_verify_logits_adjustments
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

VOCAB, EOS, NODES = 12, 11, 4
ALL = {
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
    BatchedRepetitionPenalizer,
}


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """SGLang compiles this function; a unit test does not wait for that."""
    plain = inspect.unwrap(repetition_module.apply_scaling_penalties)
    for module in (repetition_module, penalties):
        monkeypatch.setattr(module, "apply_scaling_penalties", plain)


def request_of(output_ids: list[int], **sampling) -> SimpleNamespace:
    values = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "stop_token_ids": None,
    }
    return SimpleNamespace(
        output_ids=array("q", output_ids),
        sampling_params=SimpleNamespace(**values | sampling),
        eos_token_ids={EOS},
        tokenizer=SimpleNamespace(additional_stop_token_ids=None, eos_token_id=EOS),
    )


def batch_of(*reqs: SimpleNamespace) -> SimpleNamespace:
    class Batch(SimpleNamespace):  # that a weak reference can hold
        pass

    batch = Batch(reqs=list(reqs), device="cpu")
    batch.orchestrator = BatchedPenalizerOrchestrator(VOCAB, batch, ALL)
    batch.sampling_info = SimpleNamespace(penalizer_orchestrator=batch.orchestrator)
    return batch


def one_by_one(batch: SimpleNamespace, logits: torch.Tensor) -> torch.Tensor:
    """Logits [B, V] as plain decoding penalises them, each request behind its own output."""
    rows = []
    for req, plain in zip(batch.reqs, logits.split(1), strict=True):
        alone = batch_of(req)
        for token in req.output_ids:
            alone.orchestrator.cumulate_output_tokens(torch.tensor([token]))
        additive = torch.zeros_like(plain)
        alone.orchestrator.accumulate_additive_penalties(additive)
        scaling = alone.orchestrator.accumulate_scaling_penalties()
        scaling = torch.ones_like(plain) if scaling is None else scaling
        row = plain + additive
        rows.append(torch.where(row < 0, row * scaling, row / scaling))
    return torch.cat(rows)


def forward_info(batch: SimpleNamespace) -> SimpleNamespace:
    """What a forward gets: the scheduler accumulates and takes the penalizers away."""

    class Info(SimpleNamespace):
        def __len__(self) -> int:
            return len(batch.reqs)

    info = Info(
        acc_additive_penalties=None,
        acc_scaling_penalties=None,
        penalizer_orchestrator=None,
        grammar_mask=None,
        logit_bias=None,
        has_custom_logit_processor=False,
        is_all_greedy=True,
        sampling_mask_batch_indices=None,
    )
    if batch.orchestrator.is_required:
        info.acc_additive_penalties = torch.zeros(len(batch.reqs), VOCAB)
        batch.orchestrator.accumulate_additive_penalties(info.acc_additive_penalties)
        info.acc_scaling_penalties = batch.orchestrator.accumulate_scaling_penalties()
    return info


BATCHES = {
    "all": (
        request_of([3, 3, 5, 3], frequency_penalty=0.5, repetition_penalty=1.5),
        request_of([], presence_penalty=1.0, min_new_tokens=3),
        request_of([1, 2, 1], presence_penalty=1.5, min_new_tokens=3),
        request_of([1, 2], min_new_tokens=3),
    ),
    "least length": (request_of([7, 8], min_new_tokens=2), request_of([7], min_new_tokens=2)),
    "repetition": (request_of([4, 4], repetition_penalty=2.0),),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_verify_applies_what_was_accumulated(name):
    batch = batch_of(*BATCHES[name])
    # As if some had been counted before.
    batch.orchestrator.cumulate_output_tokens(torch.zeros(len(batch.reqs), dtype=torch.int64))
    count_output_tokens(batch)
    logits = torch.randn(len(batch.reqs), VOCAB, generator=torch.Generator().manual_seed(0))
    expected = one_by_one(batch, logits)
    assert not torch.equal(expected, logits)
    got = logits.repeat_interleave(NODES, 0)
    apply_dflash_verify_logits_adjustments(
        next_token_logits=got, sampling_info=forward_info(batch), draft_token_num=NODES
    )
    torch.testing.assert_close(got, expected.repeat_interleave(NODES, 0))


@pytest.mark.skipif(
    Version(version("sglang")) < Version("0.5.23"), reason="0.5.22 always reads its logits"
)
def test_a_penalised_batch_needs_its_logits():
    worker, batch = SimpleNamespace(_selector_sample=None), SimpleNamespace(has_grammar=False, return_logprob=False)
    for reqs in BATCHES.values():
        info = forward_info(batch_of(*reqs))
        assert not DFlashWorkerV2._can_skip_verify_logits(worker, batch, info)
    assert DFlashWorkerV2._can_skip_verify_logits(worker, batch, forward_info(batch_of(request_of([1]))))


def test_tokens_are_counted_when_a_step_is_prepared():
    class Counted(Exception):
        pass

    class Info:
        @property
        def penalizer_orchestrator(self):
            raise Counted

    batch = SimpleNamespace(
        device="cpu", batch_size=lambda: 1, maybe_evict_swa=lambda: None, sampling_info=Info()
    )
    with pytest.raises(Counted):
        DFlashDraftInputV2.create_idle_input("cpu").prepare_for_decode(batch)


def test_a_penalizer_that_is_not_known_is_not_passed_over():
    batch = batch_of(request_of([1], repetition_penalty=2.0))
    batch.orchestrator.penalizers = {object: SimpleNamespace(is_prepared=lambda: True)}
    with pytest.raises(NotImplementedError, match="SimpleNamespace"):
        count_output_tokens(batch)

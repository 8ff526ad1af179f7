# SPDX-License-Identifier: Apache-2.0
"""What the fork brings to 0.5.22, which lacks it; on 0.5.23 upstream's own must do the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sglang  # noqa: F401  first, for the CPU engine
import torch
from sglang.srt.layers import logits_processor
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative.ddtree.hidden_states import only_logits_processor
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2


class _Processor(LogitsProcessor):
    """The class without what its constructor asks of a running server; its projections pass through."""

    vocab_size = 4
    defer_verify_gather = False
    expected_aux_hidden_states = None

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)

    def _get_pruned_states(self, hidden_states, *_):
        return (hidden_states, *[None] * 5)

    def _get_hidden_states_to_store(self, hidden_states, before_norm, features, *_):
        return features

    def _get_logits(self, pruned_states, *_):
        return pruned_states


def test_a_worker_knows_its_draft_layout():
    processor = _Processor()
    model = torch.nn.Sequential(torch.nn.Identity(), processor)
    worker = DFlashWorkerV2.__new__(DFlashWorkerV2)
    worker._target_worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
    if hasattr(DFlashWorkerV2, "_defer_target_verify_gather"):  # upstream's constructor sets both
        assert worker._defer_target_verify_gather() is processor
        assert DFlashWorkerV2.draft_parallel_layout is None
        return
    worker.draft_owns_attention = True
    assert worker.draft_parallel_layout is True
    assert worker._target_logits_processor is processor
    assert worker._can_skip_verify_logits(None, None) is False
    worker.draft_parallel_layout = False
    assert worker.draft_parallel_layout is False


def test_a_model_of_several_logits_processors_has_none_to_ask():
    assert only_logits_processor(torch.nn.Sequential(_Processor(), _Processor())) is None
    assert only_logits_processor(torch.nn.Identity()) is None


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("mode", [CaptureHiddenMode.FULL, CaptureHiddenMode.NULL])
def test_the_last_layers_states_are_kept_beside_the_features(monkeypatch, keep, mode):
    monkeypatch.setattr(
        logits_processor.layernorm_sp,
        "maybe_exit_gather",
        lambda hidden_states, hidden_states_before_norm, **_: (hidden_states, hidden_states_before_norm),
    )
    processor = _Processor()
    processor.keep_last_hidden_states = keep
    states, features = torch.randn(2, 4), torch.randn(2, 8)
    metadata = SimpleNamespace(
        multi_item_delimiter_indices=None,
        token_indices_to_pool=None,
        is_prefill_only=False,
        forward_mode=ForwardMode.TARGET_VERIFY,
        extend_return_logprob=False,
        capture_hidden_mode=mode,
        mm_input_embeds=None,
    )
    output = processor.forward(None, states, None, metadata, aux_hidden_states=features)
    assert output.hidden_states is features
    assert output.last_hidden_states is (states if keep and mode.is_full() else None)
    assert processor.is_deferred_shard(output.next_token_logits) is False

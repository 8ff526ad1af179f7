# SPDX-License-Identifier: Apache-2.0
"""Which servers chain steps: all that lets a forward be more than its graph keeps them from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.environ import envs
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import VerifyMode
from sglang.srt.speculative.chained import eligible


class Server:
    """A server whose steps are chained, as :func:`eligible.why_not` sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turn_ms, self.experts, self.indices = 3.0, None, None
        self.parallel = SimpleNamespace(tp_size=1)
        self.disagg = SimpleNamespace(disaggregation_mode="null")
        self.exec = SimpleNamespace(
            moe=SimpleNamespace(expert_distribution_recorder_mode=None),
            overlap=SimpleNamespace(enable_two_batch_overlap=False),
        )
        self.dumper = SimpleNamespace(may_enable=False)
        self.target = SimpleNamespace(
            device="cpu",
            decode_attention_backend_str="ddtree_sm120",
            lora_manager=None,
            model=SimpleNamespace(),
            model_config=SimpleNamespace(model_is_mrope=False),
            is_hybrid_swa=False,
            canary_manager=None,
            msprobe_debugger=None,
            ngram_embedding_manager=SimpleNamespace(enabled=False, engram_hasher=None),
        )
        self.draft = SimpleNamespace(decode_attention_backend_str="ddtree_sm120")
        self.worker = SimpleNamespace(
            model_runner=self.target,
            draft_model_runner=self.draft,
            block_size=8,
            selector=None,
            lilicorr=None,
            _is_domino=False,
            use_compact_draft_cache=False,
            _need_mamba_verify_commit=False,
            _draft_sampler=None,
        )
        monkeypatch.setattr(eligible, "turn_ms_in_force", lambda: self.turn_ms)
        monkeypatch.setattr(eligible, "get_parallel", lambda: self.parallel)
        monkeypatch.setattr(eligible, "get_disagg", lambda: self.disagg)
        monkeypatch.setattr(eligible, "get_exec", lambda: self.exec)
        monkeypatch.setattr(eligible, "get_global_experts_capturer", lambda: self.experts)
        monkeypatch.setattr(eligible, "get_global_indexer_capturer", lambda: self.indices)
        monkeypatch.setattr(eligible, "dumper", self.dumper)

    def change(self, path: str, value: Any) -> None:
        *owners, name = path.split(".")
        owner: Any = self
        for step in owners:
            owner = getattr(owner, step)
        setattr(owner, name, value)


@pytest.fixture
def server(monkeypatch) -> Server:
    return Server(monkeypatch)


def test_nothing_in_the_way(server):
    assert eligible.why_not(server.worker) is None


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("turn_ms", 0.0, "--speculative-turn-ms is 0"),
        ("parallel.tp_size", 2, "several ranks"),
        ("target.decode_attention_backend_str", "triton", "the target does not verify on"),
        ("draft.decode_attention_backend_str", "triton", "the draft does not attend on"),
        ("worker.block_size", 1, "a draft block of 1 tokens"),
        ("target.lora_manager", object(), "LoRA"),
        ("target.model_config.model_is_mrope", True, "several position axes"),
        ("worker.selector", object(), "a draft head"),
        ("worker.lilicorr", object(), "a draft head"),
        ("worker._is_domino", True, "a draft head"),
        ("worker.use_compact_draft_cache", True, "--speculative-draft-window-size"),
        ("target.is_hybrid_swa", True, "a sliding-window pool"),
        ("worker._need_mamba_verify_commit", True, "recurrent layers"),
        ("experts", object(), "are returned"),
        ("indices", object(), "are returned"),
        ("exec.moe.expert_distribution_recorder_mode", "stat", "the distribution of experts"),
        ("target.canary_manager", object(), "the KV canary"),
        ("target.ngram_embedding_manager.enabled", True, "prepares each forward"),
        ("target.ngram_embedding_manager.engram_hasher", object(), "prepares each forward"),
        ("target.model.prepare_for_forward", print, "prepares each forward"),
        ("target.msprobe_debugger", object(), "a debugger"),
        ("dumper.may_enable", True, "a debugger"),
        ("exec.overlap.enable_two_batch_overlap", True, "--enable-two-batch-overlap"),
        ("disagg.disaggregation_mode", "decode", "--disaggregation-mode"),
    ],
)
def test_what_is_in_the_way(server, path, value, reason):
    server.change(path, value)
    assert reason in eligible.why_not(server.worker)


def test_a_simulated_acceptance_is_not_lost(server):
    """Of DFLASH; DDTREE refuses it."""
    with envs.SGLANG_SIMULATE_ACC_LEN.override(3.0):
        assert eligible.why_not(server.worker) == "SGLANG_SIMULATE_ACC_LEN"


def test_on_a_gpu_both_models_have_graphs_and_the_switch_is_on(server):
    server.target.device = "cuda"
    server.target.decode_cuda_graph_runner = server.draft.decode_cuda_graph_runner = None
    assert eligible.why_not(server.worker) == "no CUDA graphs of both models"
    server.target.verify_switch = SimpleNamespace(mode=VerifyMode.VALIDATE)
    assert eligible.why_not(server.worker) == "--ddtree-verify is not on"

# SPDX-License-Identifier: Apache-2.0
"""A DDTREE launch is resolved or refused before a weight is loaded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.arg_groups.fields.spec import Spec
from sglang.srt.launch_checks import check_algorithm_flags
from sglang.srt.launch_checks.error import LaunchError
from sglang.srt.speculative.ddtree import server_args as handler
from sglang.srt.speculative.ddtree.budget import TreeWidths


@pytest.mark.parametrize(
    "block,budget,topk,flag",
    [
        (8, 0, 8, "--speculative-ddtree-budget"),
        (8, 257, 8, "--speculative-ddtree-budget"),
        (8, 32, 0, "--speculative-ddtree-topk"),
        (8, 32, 65, "--speculative-ddtree-topk"),
        (1, 32, 8, "--speculative-dflash-block-size"),
        (65, 32, 8, "--speculative-dflash-block-size"),
    ],
)
def test_widths_out_of_range_name_their_flag(block, budget, topk, flag):
    with pytest.raises(ValueError, match=flag):
        TreeWidths(block_size=block, budget=budget, candidates=topk)


@pytest.mark.parametrize(
    "budget,nodes,window,holds", [(1, 2, 8, False), (7, 8, 8, True), (32, 33, 33, True)]
)
def test_the_window_covers_the_block_and_the_tree(budget, nodes, window, holds):
    widths = TreeWidths(block_size=8, budget=budget, candidates=8)
    assert (widths.num_nodes, widths.window) == (nodes, window)
    assert widths.holds_greedy_chain is holds
    assert widths.max_depth == 7


def plain_config(**changed):
    values = dict(
        speculative_num_draft_tokens=None,
        speculative_num_steps=None,
        speculative_eagle_topk=1,
        pp_size=1,
        enable_unified_memory=False,
        dcp_size=1,
        enable_dp_attention=False,
        enable_two_batch_overlap=False,
        speculative_draft_window_size=None,
        speculative_use_block_verification=False,
        speculative_use_rejection_sampling=False,
        speculative_accept_threshold_single=1.0,
        speculative_accept_threshold_acc=1.0,
        disaggregation_mode="null",
        enable_return_routed_experts=False,
        enable_return_indexer_topk=False,
        kv_canary="none",
        speculative_attention_mode="prefill",
    )
    return SimpleNamespace(**{**values, **changed})


@pytest.mark.parametrize(
    "flag,changed",
    [
        ("--speculative-num-draft-tokens", dict(speculative_num_draft_tokens=16)),
        ("--speculative-num-steps", dict(speculative_num_steps=3)),
        ("--speculative-ddtree-topk", dict(speculative_eagle_topk=4)),
        ("--pp-size", dict(pp_size=2)),
        ("--enable-unified-memory", dict(enable_unified_memory=True)),
        ("--dcp-size", dict(dcp_size=2)),
        ("--enable-dp-attention", dict(enable_dp_attention=True)),
        ("--enable-two-batch-overlap", dict(enable_two_batch_overlap=True)),
        ("--speculative-draft-window-size", dict(speculative_draft_window_size=512)),
        (
            "--speculative-use-block-verification",
            dict(speculative_use_block_verification=True),
        ),
        (
            "--speculative-use-rejection-sampling",
            dict(speculative_use_rejection_sampling=True),
        ),
        (
            "--speculative-accept-threshold",
            dict(speculative_accept_threshold_single=0.9),
        ),
        ("--speculative-accept-threshold", dict(speculative_accept_threshold_acc=0.9)),
        ("--disaggregation-mode", dict(disaggregation_mode="decode")),
        ("--enable-return-routed-experts", dict(enable_return_routed_experts=True)),
        ("--enable-return-indexer-topk", dict(enable_return_indexer_topk=True)),
        ("--kv-canary", dict(kv_canary="log")),
    ],
)
def test_an_unsupported_flag_is_refused_by_name(flag, changed):
    handler._refuse_flags(plain_config())
    with pytest.raises(ValueError, match=flag):
        handler._refuse_flags(plain_config(**changed))


@pytest.mark.parametrize(
    "recurrent,hybrid_swa,window,message",
    [
        (object(), False, None, "recurrent"),
        (None, True, None, "sliding-window"),
        (None, False, 4096, "sliding-window"),
    ],
)
def test_an_unsupported_target_is_refused(
    monkeypatch, recurrent, hybrid_swa, window, message
):
    config = SimpleNamespace(
        hf_config=SimpleNamespace(architectures=["SomeForCausalLM"]),
        is_hybrid_swa=hybrid_swa,
        sliding_window_size=window,
    )
    monkeypatch.setattr(handler, "model_config_of", lambda args: config)
    monkeypatch.setattr(handler, "mambaish_config", lambda model_config: recurrent)
    with pytest.raises(ValueError, match=f"SomeForCausalLM.*{message}"):
        handler._refuse_target(SimpleNamespace())


@pytest.mark.parametrize(
    "prefill,decode,mode,problem",
    [
        ("ddtree_sm120", "ddtree_sm120", "prefill", None),
        ("triton", "triton", "prefill", None),
        ("flashinfer", "ddtree_sm120", "decode", None),
        ("flashinfer", "ddtree_sm120", "prefill", "--speculative-attention-mode decode"),
        ("ddtree_sm120", "flashinfer", "decode", "read it as a chain"),
        ("flashinfer", "flashinfer", "prefill", "read it as a chain"),
        ("trtllm_mla", "trtllm_mla", "prefill", "ddtree_sm120, triton"),
    ],
)
def test_verify_goes_to_a_backend_that_holds_a_tree(
    monkeypatch, prefill, decode, mode, problem
):
    monkeypatch.setattr(
        handler,
        "resolving_view",
        lambda args: plain_config(speculative_attention_mode=mode),
    )
    monkeypatch.setattr(handler, "resolved_view", lambda args: None)
    monkeypatch.setattr(
        handler, "attention_backends_of", lambda cfg: (prefill, decode)
    )
    if problem is None:
        handler._route_verify(SimpleNamespace())
    else:
        with pytest.raises(ValueError, match=problem):
            handler._route_verify(SimpleNamespace())


@pytest.mark.parametrize(
    "declared,head",
    [
        (dict(architectures=["DFlashDraftModel"]), None),
        (dict(architectures=["DFlash2DraftModel"]), "DFlash2 selector"),
        (dict(architectures=["MiniMaxDFlash2DraftModel"]), "DFlash2 selector"),
        (dict(architectures=["LiLiCorrDraftModel"]), "LiLiCorr"),
        (
            dict(
                architectures=["DFlashDraftModel"],
                dflash_config=dict(
                    projector_type="domino",
                    shift_label=True,
                    pure_draft_prefix_len=1,
                    gru_hidden_dim=8,
                    emb_dim=8,
                ),
            ),
            "Domino",
        ),
    ],
)
def test_a_draft_with_a_conditional_head_is_refused_at_the_launch(
    monkeypatch, declared, head
):
    from sglang.srt.launch_checks import model_pair
    from sglang.srt.utils import hf_transformers_utils
    from transformers import PretrainedConfig

    draft = PretrainedConfig(**declared)
    cfg = SimpleNamespace(
        speculative_algorithm="DDTREE",
        speculative_draft_model_path="draft",
        speculative_draft_model_revision=None,
        trust_remote_code=False,
        json_model_override_args="{}",
    )
    monkeypatch.setattr(model_pair, "resolving_view", lambda args: cfg)
    monkeypatch.setattr(model_pair, "model_config_of", lambda args: None)
    monkeypatch.setattr(model_pair, "_misfits", lambda *_: ())
    monkeypatch.setattr(hf_transformers_utils, "get_config", lambda *_, **__: draft)
    monkeypatch.setattr(hf_transformers_utils, "get_hf_text_config", lambda config: config)
    if head is None:
        model_pair.check_model_pair(SimpleNamespace())
        return
    with pytest.raises(LaunchError, match=f"{head} head.*--speculative-algorithm DFLASH"):
        model_pair.check_model_pair(SimpleNamespace())
    cfg.speculative_algorithm = "DFLASH"
    model_pair.check_model_pair(SimpleNamespace())


@pytest.mark.parametrize("head", ["selector", "lilicorr", "_is_domino"])
def test_a_loaded_conditional_head_is_refused(head):
    from sglang.srt.speculative.ddtree.worker import DDTreeWorker

    worker = DDTreeWorker.__new__(DDTreeWorker)
    worker.selector = worker.lilicorr = None
    worker._is_domino = False
    worker._refuse_conditional_heads()
    setattr(worker, head, True)
    with pytest.raises(ValueError, match="--speculative-algorithm DFLASH"):
        worker._refuse_conditional_heads()


def raw_arguments(algorithm, **changed):
    spec = Spec()
    tree = ("budget", "topk", "no_spine")
    names = ["speculative_turn_ms", *(f"speculative_ddtree_{name}" for name in tree)]
    values = {name: getattr(spec, name) for name in names}
    return SimpleNamespace(**values | {"speculative_algorithm": algorithm} | changed)


@pytest.mark.parametrize(
    "algorithm,turn_ms",
    [
        ("DDTREE", -1.0),
        ("DFLASH", float("nan")),
        ("DDTREE", float("inf")),
        ("EAGLE", 3.0),
        ("NGRAM", 3.0),
        (None, 3.0),
    ],
)
def test_a_turn_that_cannot_be_is_refused(algorithm, turn_ms):
    with pytest.raises(LaunchError, match="--speculative-turn-ms"):
        check_algorithm_flags(raw_arguments(algorithm, speculative_turn_ms=turn_ms))


@pytest.mark.parametrize("algorithm,turn_ms", [("ddtree", 3.0), ("DFLASH", 3.0), ("EAGLE", 0.0), (None, 0.0)])
def test_a_turn_that_can_be_is_taken(algorithm, turn_ms):
    check_algorithm_flags(raw_arguments(algorithm, speculative_turn_ms=turn_ms))


def test_flags_of_a_tree_beside_another_algorithm_are_told(caplog):
    check_algorithm_flags(raw_arguments("DFLASH", speculative_ddtree_budget=64))
    assert "--speculative-ddtree-budget has no effect" in caplog.text
    caplog.clear()
    check_algorithm_flags(raw_arguments("DDTREE", speculative_ddtree_budget=64))
    check_algorithm_flags(raw_arguments("DFLASH"))
    assert not caplog.records

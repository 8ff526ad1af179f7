# SPDX-License-Identifier: Apache-2.0
"""What each patch of the DDTREE series must bring about; a test fails without its patch."""

from __future__ import annotations

import ast
import inspect
import textwrap
from importlib.metadata import version
from types import SimpleNamespace

import pytest
from packaging.version import Version
from sglang.srt.arg_groups.fields.spec import Spec
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

DDTREE = SpeculativeAlgorithm.from_string("ddtree")
BLOCK, BUDGET = 8, 32

since_0_5_23 = pytest.mark.skipif(
    Version(version("sglang")) < Version("0.5.23"), reason="the patch is not for 0.5.22, which has no such thing"
)


@pytest.fixture
def spec(monkeypatch):
    """The resolved speculative arguments, as every module that asks sees them."""
    values = SimpleNamespace(
        speculative_algorithm="DDTREE",
        speculative_num_steps=1,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=BUDGET + 1,
        speculative_dflash_block_size=BLOCK,
        speculative_ddtree_budget=BUDGET,
        enable_multi_layer_eagle=False,
    )
    for module in (
        "sglang.srt.speculative.chained.reserve",
        "sglang.srt.mem_cache.allocation_sizing",
        "sglang.srt.speculative.spec_utils",
        "sglang.srt.speculative.ddtree.metrics",
    ):
        monkeypatch.setattr(f"{module}.get_spec", lambda: values)
    monkeypatch.setattr("sglang.srt.speculative.chained.reserve.turn_ms_in_force", lambda: 0.0)
    monkeypatch.setattr(
        "sglang.srt.speculative.spec_info.get_spec_config", lambda: values
    )
    monkeypatch.setattr(
        "sglang.srt.mem_cache.allocation_sizing.max_speculative_num_draft_tokens",
        lambda: values.speculative_num_draft_tokens,
    )
    return values


def source_of(function) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def test_the_algorithm_is_a_family_member(spec):
    assert DDTREE.is_ddtree() and DDTREE.is_dflash_family()
    assert not DDTREE.is_dflash() and not DDTREE.is_eagle()
    assert DDTREE.supports_mixed_chunk() and DDTREE.supports_grammar_overlap()
    width = DDTREE.get_num_tokens_per_req_for_target_verify
    assert width(BUDGET + 1, is_draft_worker=False) == BUDGET + 1
    assert width(BUDGET + 1, is_draft_worker=True) == BLOCK
    dflash = SpeculativeAlgorithm.DFLASH
    assert not dflash.is_ddtree()
    assert dflash.get_num_tokens_per_req_for_target_verify(16, True) == 16


def test_a_registered_algorithm_is_not_ddtree():
    assert CustomSpecAlgo.is_ddtree(SimpleNamespace()) is False


def test_the_flags_have_their_defaults():
    assert Spec().speculative_ddtree_budget == 32
    assert Spec().speculative_ddtree_topk == 8
    assert Spec().speculative_ddtree_no_spine is False


def test_the_worker_drafts_blocks_and_verifies_trees():
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    values = [
        ast.unparse(node.value)
        for node in ast.walk(source_of(DFlashWorkerV2.__init__))
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "self.block_size"
        and "get_spec" in ast.unparse(node.value)
    ]
    assert len(values) == 1
    for block, nodes, expected in ((8, 33, 8), (8, 2, 8), (None, 16, 16)):
        names = {
            "get_spec": lambda block=block, nodes=nodes: SimpleNamespace(
                speculative_dflash_block_size=block, speculative_num_draft_tokens=nodes
            )
        }
        assert eval(values[0], names) == expected


def test_no_hidden_states_are_relayed(spec):
    from sglang.srt.speculative.spec_utils import spec_need_hidden_states

    assert spec_need_hidden_states() is False
    spec.speculative_algorithm = "EAGLE3"
    assert spec_need_hidden_states() is True


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("budget", [1, 8, 32, 256])
def test_a_row_holds_what_decode_reserves(spec, monkeypatch, budget, page_size):
    from sglang.srt.mem_cache import allocation_sizing as sizing

    spec.speculative_num_draft_tokens = budget + 1
    monkeypatch.setattr(sizing, "get_alloc_page_size", lambda: page_size)
    window = max(budget + 1, BLOCK)
    assert sizing.get_alloc_len_per_decode() == window
    assert sizing.get_alloc_reserve_per_decode() == 2 * window

    # At the end of the context the reserve, rounded up to a page, is still in the row.
    context = 2048
    row = context + sizing.get_req_to_token_extra_context_len()
    request = SimpleNamespace(
        kv=SimpleNamespace(kv_allocated_len=0, kv_committed_len=context - 1)
    )
    _, (allocated,), _ = sizing.page_aligned_decode_alloc_lens(
        [request], reserve=2 * window, page_size=page_size
    )
    assert allocated <= row


def test_the_draft_input_reserves_the_same(spec):
    from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2

    assigned = [
        ast.unparse(node.value)
        for node in ast.walk(source_of(DFlashDraftInputV2.prepare_for_decode))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "reserve"
    ]
    assert assigned == ["get_alloc_reserve_per_decode()"]


def test_the_target_graph_is_captured_with_a_tree_input():
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import (
        DecodeCudaGraphRunner,
    )
    from sglang.srt.speculative.ddtree.verify_input import DDTreeVerifyInput

    mask = object()
    for backend, draft, expected in (
        ("ddtree_sm120", False, (DDTreeVerifyInput, None)),
        ("triton", False, (DDTreeVerifyInput, mask)),
    ):
        runner = SimpleNamespace(
            model_runner=SimpleNamespace(
                spec_algorithm=DDTREE,
                is_draft_worker=draft,
                decode_attention_backend_str=backend,
            ),
            captured_req_width=BUDGET + 1,
            buffers=SimpleNamespace(custom_mask=mask),
        )
        spec_info = DecodeCudaGraphRunner.get_spec_info(runner, num_tokens=BUDGET + 1)
        assert type(spec_info) is expected[0]
        assert spec_info.custom_mask is expected[1]
        assert spec_info.draft_token_num == BUDGET + 1


@since_0_5_23
def test_the_draft_runs_in_one_group():
    from sglang.srt.configs.draft_parallel import DraftTPExecution
    from sglang.srt.speculative.draft_parallel import legacy_draft_parallel_spec

    execution = legacy_draft_parallel_spec(DDTREE).tp_execution
    assert execution is DraftTPExecution.SINGLE_GROUP


def test_the_sync_sites_are_selectable():
    from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite, parse_spec_tp_sync

    assert SpecTpSyncSite.DDTREE_CANDIDATES in parse_spec_tp_sync("all")
    assert parse_spec_tp_sync("ddtree-choice") == {SpecTpSyncSite.DDTREE_CHOICE}
    # The choice draws from the random generator; the candidates do not.
    assert SpecTpSyncSite.DDTREE_CHOICE in parse_spec_tp_sync("rng")
    assert SpecTpSyncSite.DDTREE_CANDIDATES not in parse_spec_tp_sync("rng")


def test_sampling_masks_are_refused():
    from sglang.srt.speculative.spec_sampling_mask import (
        validate_spec_sampling_mask_request,
    )

    request = SimpleNamespace(sampling_params=SimpleNamespace(min_p=0, top_k=1))
    assert "not supported" in validate_spec_sampling_mask_request(request, DDTREE)


@since_0_5_23
def test_step_metrics_cover_ddtree():
    from sglang.srt.managers.scheduler_components import metrics_reporter

    assert DDTREE in metrics_reporter._SPEC_DECODE_SNAPSHOT_ALGORITHMS


def test_the_accept_rate_is_a_share_of_the_longest_path(spec, monkeypatch):
    from sglang.srt.managers import tokenizer_manager

    monkeypatch.setattr(tokenizer_manager, "get_spec", lambda: spec)
    output = SimpleNamespace(
        spec_verify_ct=[10],
        spec_num_correct_drafts=[35],
        completion_tokens=[45],
        spec_num_cap_tokens=[330],
        spec_num_block_accept_tokens=[0],
        spec_correct_drafts_histogram=[[5, 0, 0, 0, 0, 0, 0, 5]],
    )
    meta: dict = {}
    calculate = tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics
    calculate(SimpleNamespace(), meta, output, 0)
    assert meta["spec_accept_rate"] == 0.5
    assert meta["spec_num_proposed_drafts"] == 10 * (BLOCK - 1)
    assert meta["spec_accept_length"] == 4.5
    assert meta["spec_tree_budget"] == BUDGET
    assert meta["spec_tree_nodes"] == 32
    assert meta["spec_correct_drafts_histogram"] == [5, 0, 0, 0, 0, 0, 0, 5]

    spec.speculative_algorithm = "DFLASH"
    meta = {}
    calculate(SimpleNamespace(), meta, output, 0)
    assert meta["spec_num_proposed_drafts"] == 10 * BUDGET
    assert "spec_tree_budget" not in meta


def test_a_step_is_observed_in_prometheus(spec):
    from prometheus_client import REGISTRY
    from sglang.srt.managers.scheduler_components.batch_result_processor import (
        SchedulerBatchResultProcessor,
    )
    from sglang.srt.speculative.ddtree.metrics import observe_tree_step

    process = SchedulerBatchResultProcessor.process_batch_result_decode
    assert "observe_tree_step(self.metrics_collector, result)" in inspect.getsource(
        process
    )
    collector = SimpleNamespace(labels={"model_name": "m"})
    step = SimpleNamespace(
        num_correct_drafts_per_req_cpu=[0, 3, 7], num_cap_tokens=3 * 33
    )
    observe_tree_step(collector, step)
    sample = REGISTRY.get_sample_value
    assert sample("sglang:spec_accepted_depth_count", collector.labels) == 3
    assert sample("sglang:spec_accepted_depth_sum", collector.labels) == 10
    labels = {**collector.labels, "le": "3.0"}
    assert sample("sglang:spec_accepted_depth_bucket", labels) == 2
    assert sample("sglang:spec_tree_nodes", collector.labels) == 32


def test_requests_for_hidden_states_are_taken():
    from sglang.srt.managers.scheduler import Scheduler

    tests = [
        node.test
        for node in ast.walk(source_of(Scheduler._handle_generate_request))
        if isinstance(node, ast.If) and "is_dflash_family" in ast.unparse(node.test)
    ]
    assert len(tests) == 1
    check = compile(ast.Expression(tests[0]), "test", "eval")
    for algorithm, checked in (("DFLASH", True), ("DSPARK", True), ("DDTREE", False)):
        scheduler = SimpleNamespace(
            spec_algorithm=SpeculativeAlgorithm.from_string(algorithm)
        )
        assert eval(check, {"self": scheduler}) is checked


def test_setup_ends_after_the_pools_have_their_size():
    from sglang.srt.managers.scheduler import Scheduler

    calls = [
        (node.lineno, ast.unparse(node.func))
        for node in ast.walk(source_of(Scheduler.init_model_worker))
        if isinstance(node, ast.Call)
    ]
    order = [name for _, name in sorted(calls)]
    assert order.count("self.draft_worker.finish_setup") == 1
    assert order.index("self.draft_worker.finish_setup") > order.index(
        "model_runner.post_capture_resize_kv_pool"
    )


def test_server_info_has_the_state_of_ddtree(monkeypatch):
    from sglang.srt.environ import envs
    from sglang.srt.managers.scheduler_components.internal_state import (
        SchedulerInternalStateController,
    )

    assert envs.SGLANG_DDTREE_CHECK_CHAIN.get() is False
    monkeypatch.setenv("SGLANG_DDTREE_CHECK_CHAIN", "1")
    assert envs.SGLANG_DDTREE_CHECK_CHAIN.get() is True

    controller = SimpleNamespace(_average_accept_length=lambda: None)
    for algorithm, expected in (("DDTREE", {"ddtree": "state"}), ("DFLASH", {})):
        controller.scheduler = SimpleNamespace(
            spec_algorithm=SpeculativeAlgorithm.from_string(algorithm),
            draft_worker=SimpleNamespace(state=lambda: "state"),
        )
        state: dict = {}
        SchedulerInternalStateController._add_speculative(controller, state)
        assert state == expected


def test_the_accept_threshold_cannot_be_relaxed_at_run_time():
    from sglang.srt.managers.scheduler_components import internal_state

    controller = internal_state.SchedulerInternalStateController(
        SimpleNamespace(spec_algorithm=DDTREE), record_step_time=False
    )
    update = SimpleNamespace(server_args={"speculative_accept_threshold_single": 0.5})
    assert controller.set_internal_state(update).updated is False
    with pytest.raises(internal_state.UpdateRejected, match="DDTREE"):
        controller._validate_accept_threshold("speculative_accept_threshold_acc", 0.9)
    controller._validate_accept_threshold("speculative_accept_threshold_acc", 1.0)

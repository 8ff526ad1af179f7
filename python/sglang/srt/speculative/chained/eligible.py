# SPDX-License-Identifier: Apache-2.0
"""Which servers chain steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.kernels.ops.ddtree.tree_build import MAX_DEPTH
from sglang.srt.debug_utils.dumper import dumper
from sglang.srt.environ import envs
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import VerifyMode
from sglang.srt.layers.attention.ddtree_sm120_backend import BACKEND_NAME
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from sglang.srt.runtime_context import get_disagg, get_exec, get_parallel
from sglang.srt.speculative.chained.turn_time import turn_ms_in_force
from sglang.srt.state_capturer.indexer_topk import get_global_indexer_capturer
from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2


def why_not(worker: DFlashWorkerV2) -> str | None:
    """What keeps a server's turns at one step; None if nothing does.

    A chained step does what ``ModelRunner.forward`` does for a greedy batch and
    nothing else, so whatever hooks into that has to be off.
    """
    target, draft = worker.model_runner, worker.draft_model_runner
    reasons = (
        (turn_ms_in_force() <= 0, "--speculative-turn-ms is 0"),
        (get_parallel().tp_size != 1, "several ranks"),
        (_attends_elsewhere(target), f"the target does not verify on {BACKEND_NAME}"),
        (_attends_elsewhere(draft), f"the draft does not attend on {BACKEND_NAME}"),
        (not verifies_by_ours(target), "--ddtree-verify is not on"),
        (_lacks_graphs(worker), "no CUDA graphs of both models"),
        (not 2 <= worker.block_size <= MAX_DEPTH + 1, f"a draft block of {worker.block_size} tokens"),
        (target.lora_manager is not None, "LoRA"),
        (target.model_config.model_is_mrope, "a model with several position axes"),
        (worker.selector is not None or worker.lilicorr is not None or worker._is_domino, "a draft head"),
        (worker.use_compact_draft_cache, "--speculative-draft-window-size"),
        (target.is_hybrid_swa, "a sliding-window pool"),
        (worker._need_mamba_verify_commit, "recurrent layers"),
        (
            get_global_experts_capturer() is not None or get_global_indexer_capturer() is not None,
            "experts or indices of a forward are returned",
        ),
        (get_exec().moe.expert_distribution_recorder_mode is not None, "the distribution of experts is recorded"),
        (target.canary_manager is not None, "the KV canary"),
        (_prepares_each_forward(target), "a model that prepares each forward on the host"),
        (envs.SGLANG_SIMULATE_ACC_LEN.get() > 0, "SGLANG_SIMULATE_ACC_LEN"),
        (target.msprobe_debugger is not None or dumper.may_enable, "a debugger that counts forwards"),
        (get_exec().overlap.enable_two_batch_overlap, "--enable-two-batch-overlap"),
        (get_disagg().disaggregation_mode != "null", "--disaggregation-mode"),
    )
    return next((reason for present, reason in reasons if present), None)


def verifies_by_ours(target: ModelRunner) -> bool:
    """Whether captured graphs are those of the mode that the cutover switch has; a CPU looks at it in every forward."""
    if target.device == "cpu":
        return True
    switch = getattr(target, "verify_switch", None)
    return switch is None or switch.mode is VerifyMode.ON


def _attends_elsewhere(runner: ModelRunner) -> bool:
    return runner.decode_attention_backend_str != BACKEND_NAME


def _prepares_each_forward(target: ModelRunner) -> bool:
    tables = target.ngram_embedding_manager
    return tables.enabled or tables.engram_hasher is not None or hasattr(target.model, "prepare_for_forward")


def _lacks_graphs(worker: DFlashWorkerV2) -> bool:
    if worker.model_runner.device == "cpu":
        return False
    runners = worker.model_runner.decode_cuda_graph_runner, worker.draft_model_runner.decode_cuda_graph_runner
    return worker._draft_sampler is None or any(not isinstance(runner, DecodeCudaGraphRunner) for runner in runners)

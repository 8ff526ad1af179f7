# SPDX-License-Identifier: Apache-2.0
"""Arguments of ``--speculative-algorithm DDTREE``: defaults and refusals."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sglang.srt.arg_groups.model_override_base import (
    attention_backends_of,
    model_config_of,
)
from sglang.srt.arg_groups.overrides import (
    declare_resolution,
    resolved_view,
    resolving_view,
)
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.environ import envs
from sglang.srt.launch_checks.error import LaunchError
from sglang.srt.speculative.ddtree.budget import TreeWidths

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

# Backends whose TARGET_VERIFY applies a tree mask to MLA and to GQA layers.
TREE_VERIFY_BACKENDS = ("ddtree_sm120", "triton")


def handle_ddtree(server_args: ServerArgs) -> None:
    """Resolve a DDTREE launch, or refuse it with the flag and the remedy.

    The drafter is DFLASH's, so its checks and its inference of the block size
    run first; they leave the block size where DDTREE wants the target's width.
    """
    from sglang.srt.arg_groups.speculative_hook import _handle_dflash

    cfg = resolving_view(server_args)
    _refuse_flags(cfg)
    _refuse_target(server_args)
    _handle_dflash(server_args)

    cfg = resolving_view(server_args)
    try:
        widths = TreeWidths(
            block_size=int(cfg.speculative_num_draft_tokens),
            budget=int(cfg.speculative_ddtree_budget),
            candidates=int(cfg.speculative_ddtree_topk),
        )
    except ValueError as error:
        raise LaunchError(str(error)) from error
    declare_resolution(
        server_args,
        "handle_ddtree",
        speculative_dflash_block_size=widths.block_size,
        speculative_num_draft_tokens=widths.num_nodes,
    )
    _route_verify(server_args)
    if cfg.speculative_ddtree_no_spine:
        logger.info("DDTREE: --speculative-ddtree-no-spine, the greedy chain may be cut.")
    elif not widths.holds_greedy_chain:
        logger.warning(
            "DDTREE: budget %d cannot hold the drafter's greedy chain of %d tokens, so "
            "a step may accept less than DFLASH would; raise "
            "--speculative-ddtree-budget to %d or more.",
            widths.budget,
            widths.max_depth,
            widths.max_depth,
        )


def _refuse_flags(cfg) -> None:
    refusals = (
        (
            cfg.speculative_num_draft_tokens is not None,
            "--speculative-num-draft-tokens",
            "the target's width is the budget plus one; set --speculative-ddtree-budget",
        ),
        (
            cfg.speculative_num_steps not in (None, 1),
            "--speculative-num-steps",
            "a block is drafted in one step; its length is --speculative-dflash-block-size",
        ),
        (
            cfg.speculative_eagle_topk not in (None, 1),
            "--speculative-eagle-topk",
            "candidates a position are set with --speculative-ddtree-topk",
        ),
        (
            cfg.pp_size != 1,
            "--pp-size",
            "the drafter reads features of layers that would be on other ranks",
        ),
        (
            cfg.enable_unified_memory,
            "--enable-unified-memory",
            "its page-granular KV moves cannot commit single rows of a tree",
        ),
        (
            cfg.dcp_size != 1,
            "--dcp-size",
            "a tree's rows would be spread over the ranks of the context",
        ),
        (
            cfg.enable_dp_attention,
            "--enable-dp-attention",
            "idle ranks would have to verify trees that do not exist",
        ),
        (
            cfg.enable_two_batch_overlap,
            "--enable-two-batch-overlap",
            "a tree mask is not split between the two halves of a batch",
        ),
        (
            cfg.speculative_draft_window_size is not None,
            "--speculative-draft-window-size",
            "the drafter's compact cache assumes that it writes the verified window",
        ),
        (
            cfg.speculative_use_block_verification,
            "--speculative-use-block-verification",
            "the tree is verified by one draw a node, which needs no rejection",
        ),
        (
            cfg.speculative_use_rejection_sampling,
            "--speculative-use-rejection-sampling",
            "the tree is verified by one draw a node, which needs no rejection",
        ),
        (
            cfg.speculative_accept_threshold_single != 1.0
            or cfg.speculative_accept_threshold_acc != 1.0,
            "--speculative-accept-threshold-single / -acc",
            "DDTREE only accepts what the target itself chose",
        ),
        (
            cfg.disaggregation_mode != "null",
            "--disaggregation-mode",
            "the drafter's state is not transferred with the KV cache",
        ),
        (
            cfg.enable_return_routed_experts,
            "--enable-return-routed-experts",
            "experts are kept by KV slot, and the path of a tree moves to other slots",
        ),
        (
            cfg.enable_return_indexer_topk,
            "--enable-return-indexer-topk",
            "indices are kept by KV slot, and the path of a tree moves to other slots",
        ),
        (
            cfg.kv_canary != "none",
            "--kv-canary",
            "it takes the window for a chain, and its records do not move with the path",
        ),
        (
            envs.SGLANG_SIMULATE_ACC_LEN.get() > 0,
            "SGLANG_SIMULATE_ACC_LEN",
            "a simulated acceptance has no path in the tree",
        ),
    )
    for present, flag, reason in refusals:
        if present:
            raise LaunchError(f"DDTREE does not support {flag}: {reason}.")


def _refuse_target(server_args: ServerArgs) -> None:
    model_config = model_config_of(server_args)
    architectures = ", ".join(model_config.hf_config.architectures or ["?"])
    if mambaish_config(model_config) is not None:
        raise LaunchError(
            f"DDTREE does not support {architectures}: its recurrent layers keep one "
            "state a sequence and cannot follow the branches of a tree. Use DFLASH."
        )
    if model_config.is_hybrid_swa or model_config.sliding_window_size:
        raise LaunchError(
            f"DDTREE does not support {architectures}: its sliding-window layers bound "
            "a node's view by row index, which in a tree is not its position. Use DFLASH."
        )


def _route_verify(server_args: ServerArgs) -> None:
    """Keep TARGET_VERIFY on a backend that applies the tree mask."""
    cfg = resolving_view(server_args)
    prefill, decode = attention_backends_of(resolved_view(server_args))
    if prefill != decode and cfg.speculative_attention_mode != "decode":
        raise LaunchError(
            "DDTREE with different prefill and decode attention backends verifies on "
            f"the decode backend; add --speculative-attention-mode decode (prefill is "
            f"{prefill!r}, decode is {decode!r})."
        )
    if decode not in TREE_VERIFY_BACKENDS:
        raise LaunchError(
            f"DDTREE cannot verify a tree on attention backend {decode!r}, which would "
            "read it as a chain. Set --attention-backend (or --decode-attention-backend "
            "with --speculative-attention-mode decode) to one of "
            f"{', '.join(TREE_VERIFY_BACKENDS)}."
        )

# SPDX-License-Identifier: Apache-2.0
"""What choosing ``ddtree_sm120`` does to the other arguments of a launch on a GPU. On a CPU nothing of it applies."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sglang.srt.arg_groups.model_override_base import attention_backends_of, model_config_of
from sglang.srt.arg_groups.overrides import declare_resolution, resolved_view, resolving_view
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.launch_checks.error import LaunchError
from sglang.srt.layers.attention.ddtree_sm120.requirements import Demands, unmet
from sglang.srt.runtime_context import get_platform
from sglang.srt.utils.common import is_sm120, is_sm121

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

_NAME = "ddtree_sm120"
_BLOCK_DRAFTERS = ("DFLASH", "DDTREE", "DSPARK")
_WITHOUT_DRAFT_MODEL = (None, "NGRAM")


def default_backend(server_args: ServerArgs, model_config: ModelConfig) -> str | None:
    """``ddtree_sm120`` where it is the default: MLA models on sm_120 and sm_121 whose demands it meets."""
    if not (is_sm120() or is_sm121()) or mambaish_config(model_config) is not None:
        return None
    reason = unmet(_demands_of(server_args, model_config))
    if reason is not None:
        logger.info("ddtree_sm120 is not chosen by default: %s", reason)
        return None
    return _NAME


def resolve_beside(server_args: ServerArgs) -> None:
    """Fill in the arguments that go with the backend, before those of speculative decoding are resolved.

    Raises:
        LaunchError: the backend is asked to draft.
    """
    cfg = resolving_view(server_args)
    if cfg.device != "cuda":
        return
    if cfg.speculative_draft_attention_backend == _NAME:
        raise LaunchError(
            "--speculative-draft-attention-backend ddtree_sm120: it does not draft on a GPU, where it has no kernel "
            "for GQA layers. Leave the flag out, or set it to flashinfer or triton."
        )
    prefill, decode = attention_backends_of(resolved_view(server_args))
    if cfg.speculative_algorithm is None or _NAME not in (prefill, decode):
        return
    chosen = {}
    algorithm = cfg.speculative_algorithm.upper()
    if decode == _NAME != prefill and cfg.speculative_attention_mode != "decode":
        chosen["speculative_attention_mode"] = "decode"
        logger.info(
            "--speculative-attention-mode is set to decode: otherwise the verify would run on the prefill backend %s.",
            prefill,
        )
    if cfg.speculative_draft_attention_backend is None and algorithm not in _WITHOUT_DRAFT_MODEL:
        # EAGLE's drafts may be trees and their pages larger than a token, which only triton has for every model.
        flashinfer = algorithm in _BLOCK_DRAFTERS and get_platform().has_flashinfer
        chosen["speculative_draft_attention_backend"] = "flashinfer" if flashinfer else "triton"
        logger.info(
            "--speculative-draft-attention-backend is set to %s: ddtree_sm120 does not draft on a GPU.",
            chosen["speculative_draft_attention_backend"],
        )
    if chosen:
        declare_resolution(server_args, "ddtree_sm120.resolve_beside", **chosen)


def check_launch(server_args: ServerArgs) -> None:
    """Refuse what the backend cannot do, before a process is started. Reads resolved arguments.

    Raises:
        LaunchError: naming the flag and the remedy.
    """
    cfg = resolving_view(server_args)
    if cfg.device != "cuda" or _NAME not in attention_backends_of(resolved_view(server_args)):
        return
    reason = unmet(_demands_of(server_args, model_config_of(server_args)))
    if reason is not None:
        raise LaunchError(f"--attention-backend ddtree_sm120: {reason}.")


def _demands_of(server_args: ServerArgs, model_config: ModelConfig) -> Demands:
    cfg = resolving_view(server_args)
    return Demands(
        is_mla=model_config.attention_arch == AttentionArch.MLA,
        latent_dim=getattr(model_config, "kv_lora_rank", None),
        rope_dim=getattr(model_config, "qk_rope_head_dim", None),
        model_dtype=model_config.dtype,
        kv_cache_dtype=cfg.kv_cache_dtype,
        # With DP attention the ranks of a head group are known to the backend only, which looks again.
        heads=1 if cfg.enable_dp_attention else model_config.num_attention_heads // cfg.tp_size,
        nodes=(cfg.speculative_num_draft_tokens or 1) if cfg.speculative_algorithm is not None else 1,
        page_size=cfg.page_size or 1,
        dcp_size=cfg.dcp_size,
        unified_memory=bool(cfg.enable_unified_memory),
    )

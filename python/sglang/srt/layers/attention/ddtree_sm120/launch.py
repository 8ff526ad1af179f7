# SPDX-License-Identifier: Apache-2.0
"""What choosing ``ddtree_sm120`` does to the other arguments of a launch on a GPU. On a CPU nothing of it applies."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, NamedTuple

import torch
from sglang.srt.arg_groups.model_override_base import attention_backends_of, model_config_of
from sglang.srt.arg_groups.overrides import declare_resolution, resolved_view, resolving_view
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.configs.model_config import AttentionArch, is_deepseek_dsa
from sglang.srt.launch_checks.error import LaunchError
from sglang.srt.layers.attention.ddtree_sm120.checkpoint_kv import kv_cache_dtype_of
from sglang.srt.layers.attention.ddtree_sm120.requirements import Demands, unmet
from sglang.srt.runtime_context import get_platform
from sglang.srt.utils.common import is_sm120, is_sm121

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

_NAME = "ddtree_sm120"
_BLOCK_DRAFTERS = ("DFLASH", "DDTREE", "DSPARK")
_DRAFTS_OURS = ("DFLASH", "DDTREE")
_WITHOUT_DRAFT_MODEL = (None, "NGRAM")


def default_backend(server_args: ServerArgs, model_config: ModelConfig) -> str | None:
    """``ddtree_sm120`` where it is the default: MLA models on sm_120 and sm_121 whose demands it meets."""
    if not (is_sm120() or is_sm121()) or mambaish_config(model_config) is not None:
        return None
    demands = _demands_of(server_args, model_config)
    if not demands.is_mla:
        return None
    reason = unmet(demands)
    if reason is not None:
        logger.info("ddtree_sm120 is not chosen by default: %s", reason)
        return None
    return _NAME


def resolve_beside(server_args: ServerArgs) -> None:
    """Fill in the arguments that go with the backend, before those of speculative decoding are resolved.

    Raises:
        LaunchError: the backend is asked to draft and cannot.
    """
    cfg = resolving_view(server_args)
    if cfg.device != "cuda":
        return
    if cfg.speculative_draft_attention_backend == _NAME:
        reason = draft_obstacle(cfg)
        if reason is not None:
            raise LaunchError(f"--speculative-draft-attention-backend ddtree_sm120: {reason}.")
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
        drafter = _default_draft_backend(cfg, algorithm, decode)
        chosen["speculative_draft_attention_backend"] = drafter
        logger.info("--speculative-draft-attention-backend is set to %s.", drafter)
    if chosen:
        declare_resolution(server_args, "ddtree_sm120.resolve_beside", **chosen)


def _default_draft_backend(cfg, algorithm: str, decode: str) -> str:
    """``ddtree_sm120`` beside a target that it verifies, where it can attend the draft's block."""
    if algorithm in _DRAFTS_OURS and decode == _NAME:
        reason = draft_obstacle(cfg)
        if reason is None:
            return _NAME
        logger.info("ddtree_sm120 does not attend the draft's block: %s", reason)
    # EAGLE's drafts may be trees and their pages larger than a token, which only triton has for every model.
    return "flashinfer" if algorithm in _BLOCK_DRAFTERS and get_platform().has_flashinfer else "triton"


def check_launch(server_args: ServerArgs) -> None:
    """Refuse what the backend cannot do, before a process is started. Reads resolved arguments.

    Raises:
        LaunchError: naming the flag and the remedy.
    """
    cfg = resolving_view(server_args)
    prefill, decode = attention_backends_of(resolved_view(server_args))
    if cfg.device != "cuda" or _NAME not in (prefill, decode):
        return
    verifies = cfg.speculative_algorithm is not None and cfg.speculative_attention_mode == "prefill"
    if decode != _NAME and not verifies:
        raise LaunchError(
            "--attention-backend ddtree_sm120 decodes and verifies on a GPU, but --decode-attention-backend is "
            f"{decode}, which leaves it nothing to do. Leave that out, or name the backend of the prefill, such as "
            "--prefill-attention-backend flashinfer."
        )
    algorithm = (cfg.speculative_algorithm or "").upper()
    # EAGLE's builders write N x N bytes a request here; the halves are cut out of them as out of whole masks.
    if cfg.enable_two_batch_overlap and algorithm not in ("", *_BLOCK_DRAFTERS, *_WITHOUT_DRAFT_MODEL):
        raise LaunchError(
            f"--attention-backend ddtree_sm120 does not verify {algorithm} with --enable-two-batch-overlap, which cuts "
            "the trees of a batch apart where they do not end here; leave --enable-two-batch-overlap out."
        )
    reason = unmet(_demands_of(server_args, model_config_of(server_args)))
    if reason is not None:
        raise LaunchError(f"--attention-backend ddtree_sm120: {reason}.")


def draft_obstacle(cfg) -> str | None:
    """Why ``ddtree_sm120`` cannot attend the block of this launch's draft model on a GPU; None if it can.

    Args:
        cfg: a view of the server arguments.
    """
    if (cfg.speculative_algorithm or "").upper() not in _DRAFTS_OURS:
        return "on a GPU it drafts for DFLASH and DDTREE only: leave the flag out, or set it to flashinfer or triton"
    if cfg.speculative_draft_model_path is None:
        return "--speculative-draft-model-path names no draft model"
    try:
        draft = _read_draft(cfg)
    except (OSError, ValueError) as error:
        return f"the configuration of --speculative-draft-model-path cannot be read: {error}"
    ranks = 1 if cfg.enable_dp_attention else cfg.tp_size
    return unmet(
        Demands(
            is_mla=False,
            latent_dim=None,
            rope_dim=None,
            model_dtype=draft.dtype,
            kv_cache_dtype=cfg.speculative_draft_kv_cache_dtype or cfg.kv_cache_dtype,
            heads=draft.heads // ranks,
            nodes=1,
            page_size=cfg.page_size or 1,
            unified_memory=bool(cfg.enable_unified_memory),
            drafts=True,
            drafts_blocks=True,
            kv_heads=max(1, draft.kv_heads // ranks),
            head_dims=(draft.head_dim, draft.head_dim),
            sinks=draft.sinks,
        )
    )


class _Draft(NamedTuple):
    """What the attention of a block drafter asks for, over all ranks."""

    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    sinks: bool


def _read_draft(cfg) -> _Draft:
    from sglang.srt.configs.model_config import _get_and_verify_dtype
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config
    from sglang.srt.utils.hf_transformers_utils import get_config, get_hf_text_config

    config = get_config(
        cfg.speculative_draft_model_path,
        trust_remote_code=cfg.trust_remote_code,
        revision=cfg.speculative_draft_model_revision,
        model_override_args=json.loads(cfg.json_model_override_args),
    )
    text = get_hf_text_config(config)
    heads = text.num_attention_heads
    return _Draft(
        dtype=_get_and_verify_dtype(text, cfg.dtype),
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        sinks=parse_dflash_draft_config(draft_hf_config=config).attention_sink_bias,
    )


def _demands_of(server_args: ServerArgs, model_config: ModelConfig) -> Demands:
    cfg = resolving_view(server_args)
    is_mla = model_config.attention_arch == AttentionArch.MLA
    ranks = 1 if cfg.enable_dp_attention else cfg.tp_size
    return Demands(
        is_mla=is_mla,
        latent_dim=getattr(model_config, "kv_lora_rank", None),
        rope_dim=getattr(model_config, "qk_rope_head_dim", None),
        model_dtype=model_config.dtype,
        kv_cache_dtype=kv_cache_dtype_of(cfg.kv_cache_dtype, model_config),
        sparse=is_deepseek_dsa(model_config.hf_config),
        # With DP attention the ranks of a head group are known to the backend only, which looks again.
        heads=1 if cfg.enable_dp_attention and is_mla else model_config.num_attention_heads // ranks,
        nodes=(cfg.speculative_num_draft_tokens or 1) if cfg.speculative_algorithm is not None else 1,
        page_size=cfg.page_size or 1,
        dcp_size=cfg.dcp_size,
        unified_memory=bool(cfg.enable_unified_memory),
        kv_heads=None if is_mla else model_config.get_num_kv_heads(ranks),
        head_dims=None if is_mla else (model_config.head_dim, model_config.v_head_dim),
    )

# SPDX-License-Identifier: Apache-2.0
"""Decode and verify of MLA layers on a CPU by the C++ twin of the CUDA kernel."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from sglang.kernels.ops.ddtree import mla_tree_verify
from sglang.kernels.ops.ddtree.tree_build import pack_mask
from sglang.srt.layers.attention.ddtree_sm120.tree_mask import read_tree_mask
from sglang.srt.layers.radix_attention import AttentionType

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

logger = logging.getLogger(__name__)

NAME = "mla_tree_verify (C++)"
_LATENT_DIM, _HEAD_DIM = 512, 576
_MAX_HEADS, _MAX_NODES, _MAX_PAGE = 128, 257, 64


@dataclass(frozen=True)
class TwinStep:
    """A decode or verify step of ``B`` requests as the operator takes it.

    Attributes:
        num_nodes: ``N``; 1 for decode.
        page_table: ``[B, pages]`` int32.
        prefix_lens: ``[B]`` int32.
        mask_words: ``[B, N, ceil(N / 32)]`` int32.
    """

    num_nodes: int
    page_table: torch.Tensor
    prefix_lens: torch.Tensor
    mask_words: torch.Tensor


class CpuMlaVerify:
    """The twin over one pool.

    Args:
        page_size: tokens a page.
    """

    def __init__(self, page_size: int):
        self._page_size = page_size
        self._workspace = torch.empty(0, dtype=torch.uint8)  # a CPU needs none
        self._refused: set[int] = set()

    @staticmethod
    def lacking(*, is_mla: bool, kv_dtype: torch.dtype, page_size: int) -> str | None:
        """Why the twin cannot serve this model; None if it can."""
        if not is_mla:
            return "it is for MLA models"
        if importlib.util.find_spec("sgl_kernel_ddtree") is None:
            return "the package sglang-kernel-ddtree is not installed (`make kernel-install` in a checkout)"
        if kv_dtype not in (torch.float32, torch.bfloat16):
            return f"it reads float32 and bfloat16 KV, not {kv_dtype}"
        if page_size > _MAX_PAGE or page_size & (page_size - 1):
            return f"its pages are powers of two up to {_MAX_PAGE}, not {page_size}"
        return None

    def covers(self, layer: RadixAttention, sinks: torch.Tensor | None) -> bool:
        """Whether it computes what the layer asks for; a layer that it does not is named once in the log."""
        fits = (
            (layer.qk_head_dim, layer.v_head_dim) == (_HEAD_DIM, _LATENT_DIM)
            and layer.tp_q_head_num <= _MAX_HEADS
            and layer.attn_type == AttentionType.DECODER
            and layer.sliding_window_size < 0
            and not layer.logit_cap
            and sinks is None
        )
        if not fits and layer.layer_id not in self._refused:
            self._refused.add(layer.layer_id)
            logger.warning("ddtree_sm120: %s has no kernel for layer %d, torch attends there", NAME, layer.layer_id)
        return fits

    def prepare(self, forward_batch: ForwardBatch, req_to_token: torch.Tensor) -> TwinStep:
        """Metadata of a DECODE or TARGET_VERIFY batch whose mask has been checked (``build_plan``)."""
        seq_lens = forward_batch.seq_lens
        if forward_batch.forward_mode.is_target_verify():
            num_nodes = int(forward_batch.spec_info.draft_token_num)
            if num_nodes > _MAX_NODES:
                raise ValueError(
                    f"{NAME} verifies up to {_MAX_NODES} tokens a request, not {num_nodes}; set --ddtree-verify off"
                )
            prefix_lens = seq_lens
            tree = read_tree_mask(forward_batch.spec_info, prefix_lens)
        else:
            num_nodes, prefix_lens, tree = 1, seq_lens - 1, None
        if tree is None:
            tree = torch.ones(num_nodes, num_nodes, dtype=torch.bool).tril().expand(seq_lens.numel(), -1, -1)
        longest = int(prefix_lens.max()) + num_nodes if prefix_lens.numel() else 0
        first_slots = req_to_token[forward_batch.req_pool_indices, : longest : self._page_size]
        return TwinStep(
            num_nodes=num_nodes,
            page_table=(first_slots // self._page_size).to(torch.int32).contiguous(),
            prefix_lens=prefix_lens.to(torch.int32),
            mask_words=pack_mask(tree),
        )

    def attend(self, step: TwinStep, q: torch.Tensor, key_buffer: torch.Tensor, scale: float) -> torch.Tensor:
        """``[B * N, H, 512]`` in the dtype of ``q``.

        Args:
            q: ``[B * N, H, 576]``.
            key_buffer: ``[slots, 1, 576]``.
            scale: on the scores.
        """
        out = q.new_empty(*q.shape[:2], _LATENT_DIM)
        mla_tree_verify.mla_tree_verify(
            out,
            None,
            q[..., :_LATENT_DIM],
            q[..., _LATENT_DIM:],
            key_buffer,
            step.page_table,
            step.prefix_lens,
            step.mask_words,
            self._workspace,
            num_nodes=step.num_nodes,
            page_size=self._page_size,
            sm_scale=scale,
        )
        return out

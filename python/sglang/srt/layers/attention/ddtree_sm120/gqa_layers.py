# SPDX-License-Identifier: Apache-2.0
"""Decode, verify and a drafter's block of GQA and MHA layers on a GPU: one call of ``gqa_tree_verify`` a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.kernels.ops.ddtree import gqa_tree_verify
from sglang.srt.layers.attention.ddtree_sm120.requirements import MAX_NODES
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

if TYPE_CHECKING:
    from sglang.srt.layers.attention.ddtree_sm120.step_metadata import StepMetadata
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool


class GqaLayers:
    """The kernel, its workspace and the pool that it reads.

    Args:
        pool: of the layers' keys and values, bfloat16 or float8_e4m3fn.
        num_heads, num_kv_heads: of this rank.
        head_dim: of keys and of values.
        page_size: tokens a page.
        device: of everything.
    """

    kernel = "gqa_tree_verify"

    def __init__(
        self,
        pool: MHATokenToKVPool,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        device: torch.device | str,
    ):
        self._pool, self._page_size, self._head_dim = pool, page_size, head_dim
        self._has_scales = pool.dtype == torch.float8_e4m3fn
        # The size hardly depends on the number of nodes, so adaptive speculation may choose any.
        self.workspace = gqa_tree_verify.prepare(
            device,
            max_num_nodes=MAX_NODES,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
        )

    def check(self, layer: RadixAttention) -> None:
        """Refuse what would change the result if it were ignored.

        Raises:
            NotImplementedError: naming the layer.
        """
        if (layer.qk_head_dim, layer.v_head_dim) != (self._head_dim, self._head_dim):
            raise NotImplementedError(
                f"layer {layer.layer_id}: ddtree_sm120 on a GPU reads keys and values of {self._head_dim} numbers in "
                f"all layers, these have {layer.qk_head_dim} and {layer.v_head_dim}"
            )
        if layer.is_cross_attention or layer.attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
            raise NotImplementedError(f"layer {layer.layer_id}: ddtree_sm120 on a GPU has self-attention only")
        if layer.logit_cap and layer.logit_capping_method != "tanh":
            raise NotImplementedError(
                f"layer {layer.layer_id}: ddtree_sm120 on a GPU caps logits by tanh, not {layer.logit_capping_method}"
            )
        if layer.xai_temperature_len > 0:
            raise NotImplementedError(
                f"layer {layer.layer_id}: ddtree_sm120 on a GPU has no length-dependent temperature"
            )

    def store(
        self,
        layer: RadixAttention,
        loc: KVWriteLoc,
        k: torch.Tensor,
        v: torch.Tensor,
        k_rope: torch.Tensor | None,
    ) -> None:
        """Write the window's rows ``[T, Hkv, D]``; an fp8 pool gets them divided by the layer's scales."""
        k = k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)
        v = v.view(-1, layer.tp_v_head_num, layer.v_head_dim)
        if self._has_scales and layer.k_scale is not None:
            k, v = k.clone(), v.clone()  # the pool divides in place, and a delegate may still read them
        self._pool.set_kv_buffer(layer, loc, k, v, layer.k_scale, layer.v_scale)

    def as_stored(
        self, layer: RadixAttention, k: torch.Tensor | None, v: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The window's rows in their own dtype, as they are read back from the pool: rounded if that is fp8."""
        if not self._has_scales or k is None:
            return k, v
        return _rounded(k, layer.k_scale), _rounded(v, layer.v_scale)

    @torch.compiler.disable
    def attend(
        self, step: StepMetadata, q: torch.Tensor, q_rope: torch.Tensor | None, layer: RadixAttention
    ) -> torch.Tensor:
        """``[T, Hq * D]``; see ``DDTreeSM120AttnBackend.forward_extend``."""
        bidirectional = layer.attn_type == AttentionType.ENCODER_ONLY
        if bidirectional and step.has_tree:
            raise ValueError(f"layer {layer.layer_id} attends in both directions and cannot follow a tree mask")
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        gqa_tree_verify.gqa_tree_verify(
            out,
            None,
            q,
            self._pool.get_key_buffer(layer.layer_id),
            self._pool.get_value_buffer(layer.layer_id),
            step.page_table,
            step.prefix_lens,
            None if bidirectional else step.mask_words,
            self.workspace,
            num_nodes=step.num_nodes,
            page_size=self._page_size,
            sm_scale=layer.scaling,
            window=layer.sliding_window_size,
            logit_cap=layer.logit_cap or 0.0,
            k_scale=self._scale(layer.k_scale_float),
            v_scale=self._scale(layer.v_scale_float),
        )
        return out.view(-1, layer.tp_q_head_num * layer.v_head_dim)

    def _scale(self, of_layer: float | None) -> float:
        return of_layer if self._has_scales and of_layer is not None else 1.0


def _rounded(rows: torch.Tensor, scale: torch.Tensor | float | None) -> torch.Tensor:
    """What an fp8 pool makes of ``rows``, times the scale that it divides by."""
    scaled = rows if scale is None else rows.clone().div_(scale)
    stored = scaled.to(torch.float8_e4m3fn).to(rows.dtype)
    return stored if scale is None else stored.mul_(scale)

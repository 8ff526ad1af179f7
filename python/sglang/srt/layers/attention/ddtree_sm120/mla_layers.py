# SPDX-License-Identifier: Apache-2.0
"""Decode and verify of absorbed MLA layers on a GPU: one call of ``mla_tree_verify`` a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.kernels.ops.ddtree import mla_tree_verify
from sglang.srt.layers.attention.ddtree_sm120.requirements import MAX_NODES
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

if TYPE_CHECKING:
    from sglang.srt.layers.attention.ddtree_sm120.step_metadata import StepMetadata
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool


class MlaLayers:
    """The kernel, its workspace and the pool that it reads.

    Args:
        pool: of the layers' latent rows.
        max_requests: most of one step.
        num_heads: query heads of this rank.
        page_size: tokens a page.
        device: of everything.
    """

    kernel = "mla_tree_verify"

    def __init__(
        self, pool: MLATokenToKVPool, *, max_requests: int, num_heads: int, page_size: int, device: torch.device | str
    ):
        self._pool, self._page_size = pool, page_size
        # The size hardly depends on the number of nodes, so adaptive speculation may choose any.
        self.workspace = mla_tree_verify.prepare(
            device, max_batch=max_requests, max_num_nodes=MAX_NODES, num_heads=num_heads
        )

    @staticmethod
    def check(layer: RadixAttention) -> None:
        """Refuse what would change the result if it were ignored.

        Raises:
            NotImplementedError: naming the layer.
        """
        if (layer.tp_k_head_num, layer.qk_head_dim, layer.v_head_dim) != (1, 576, 512):
            raise NotImplementedError(
                f"ddtree_sm120 on a GPU has no kernel for layer {layer.layer_id}: {layer.tp_k_head_num} KV heads of "
                f"{layer.qk_head_dim} and {layer.v_head_dim}"
            )
        if layer.is_cross_attention or layer.attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"layer {layer.layer_id}: ddtree_sm120 on a GPU has causal self-attention only")
        if layer.logit_cap:
            raise NotImplementedError(f"layer {layer.layer_id}: ddtree_sm120 on a GPU has no logit cap")
        if layer.sliding_window_size > -1:
            raise NotImplementedError(f"layer {layer.layer_id}: ddtree_sm120 on a GPU has no sliding window")
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
        """Write the window's rows: ``k`` whole ``[T, 1, 576]``, or its latent part beside ``k_rope``."""
        if k_rope is not None:
            self._pool.set_mla_kv_buffer(layer, loc, k, k_rope)
        else:
            self._pool.set_kv_buffer(layer, loc, k, v)

    @staticmethod
    def as_stored(
        layer: RadixAttention, k: torch.Tensor | None, v: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The window's rows as they are read back from the pool: the pool has their dtype."""
        return k, v

    @torch.compiler.disable
    def attend(
        self, step: StepMetadata, q: torch.Tensor, q_rope: torch.Tensor | None, layer: RadixAttention
    ) -> torch.Tensor:
        """``[T, H * 512]``; see ``DDTreeSM120AttnBackend.forward_extend``."""
        heads, latent = layer.tp_q_head_num, layer.v_head_dim
        if q_rope is None:
            q = q.view(-1, heads, layer.qk_head_dim)
            q, q_rope = q[..., :latent], q[..., latent:]
        else:
            q, q_rope = q.view(-1, heads, latent), q_rope.view(-1, heads, layer.qk_head_dim - latent)
        out = q.new_empty(q.shape)
        mla_tree_verify.mla_tree_verify(
            out,
            None,
            q,
            q_rope,
            self._pool.get_key_buffer(layer.layer_id),
            step.page_table,
            step.prefix_lens,
            step.mask_words,
            self.workspace,
            num_nodes=step.num_nodes,
            page_size=self._page_size,
            sm_scale=layer.scaling,
        )
        return out.view(-1, heads * latent)

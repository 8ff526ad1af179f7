# SPDX-License-Identifier: Apache-2.0
"""CPU implementation of ``ddtree_sm120``. The contract is in ``ddtree_sm120_backend.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.ddtree_sm120 import cpu_mla_verify
from sglang.srt.layers.attention.ddtree_sm120.cpu_attention import LayerParams, attend
from sglang.srt.layers.attention.ddtree_sm120.cpu_mla_verify import CpuMlaVerify, TwinStep
from sglang.srt.layers.attention.ddtree_sm120.plan import AttentionPlan, Visibility, build_plan
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import VerifyMode
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.switch import open_switch
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MLATokenToKVPool

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

_KV_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class DDTreeSM120CpuAttnBackend(AttentionBackend):
    """GQA and absorbed MLA over the paged pool, every mode of a server without CUDA graphs.

    Torch attends in every mode. MLA layers in decode and verify may instead be attended by the C++ twin of the CUDA
    kernel; ``--ddtree-verify`` says which of the two serves.

    Raises:
        ValueError: the KV cache is quantised, or split into a sliding-window and a full pool.
    """

    forward_metadata: AttentionPlan

    def __init__(self, runner: ModelRunner):
        super().__init__()
        self.device = runner.device
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.kv_index_translator = runner.kv_index_translator
        self.data_type = self.kv_cache_dtype = runner.kv_cache_dtype
        self.is_mla = isinstance(self.token_to_kv_pool, MLATokenToKVPool)
        if self.kv_cache_dtype not in _KV_DTYPES:
            raise ValueError(
                "--attention-backend ddtree_sm120 on a CPU reads float32, bfloat16 and float16 KV, not "
                f"{self.kv_cache_dtype}; leave --kv-cache-dtype at auto"
            )
        if isinstance(self.token_to_kv_pool, BaseSWAKVPool):
            raise ValueError(
                "--attention-backend ddtree_sm120 on a CPU reads one KV pool; add --disable-hybrid-swa-memory"
            )

        page_size = getattr(runner, "page_size", 1)
        lacking = CpuMlaVerify.lacking(is_mla=self.is_mla, kv_dtype=self.kv_cache_dtype, page_size=page_size)
        self._twin = CpuMlaVerify(page_size)
        self._twin_step: TwinStep | None = None  # of a step in which the twin runs
        self._switch = open_switch(
            runner,
            delegate="torch",
            ours=cpu_mla_verify.NAME if lacking is None else None,
            default=VerifyMode.ON if lacking is None else VerifyMode.OFF,
            remark=None if lacking is None else f"{cpu_mla_verify.NAME}: {lacking}",
        )

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        req_to_token = self.req_to_token_pool.req_to_token
        self.forward_metadata = build_plan(forward_batch, req_to_token)
        self._twin_step = None
        mode = forward_batch.forward_mode
        if mode.is_decode() or mode.is_target_verify():
            self._switch.begin_step(eager=True)
            if self._switch.running.runs_ours:
                self._twin_step = self._twin.prepare(forward_batch, req_to_token)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def support_triton(self) -> bool:
        return False

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
        attn_sink: torch.Tensor | None = None,
        **unsupported,
    ) -> torch.Tensor:
        """Store the new KV rows, then attend to all of them.

        Args:
            q: ``[T, Hq * D]``; for MLA with ``q_rope`` the latent part ``[T, Hq, Dv]``.
            k, v: ``[T, Hkv, D]`` and ``[T, Hkv, Dv]``; None when the KV is stored already. For MLA with ``k_rope`` both
                are the latent part.
            q_rope, k_rope: ``[T, Hq, D - Dv]``, ``[T, 1, D - Dv]``, the rotary part of MLA.
            sinks, attn_sink: ``[Hq]``, one or neither.

        Returns:
            ``[T, Hq * Dv]`` in the dtype of ``q``; rows that belong to no request are zero.
        """
        self._check_layer(layer, unsupported)
        if save_kv_cache and k is not None:
            if k_rope is not None:
                k = torch.cat([k.view(k_rope.shape[0], 1, -1), k_rope.view(k_rope.shape[0], 1, -1)], dim=-1)
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc.for_batch(forward_batch), k, v)

        if q_rope is not None:
            q = torch.cat([q.view(q.shape[0], layer.tp_q_head_num, -1), q_rope], dim=-1)
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        key_buffer = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        value_buffer = None if self.is_mla else self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        params = LayerParams(
            scaling=layer.scaling,
            visibility=self._visibility(layer),
            window=layer.sliding_window_size,
            logit_cap=layer.logit_cap or 0.0,
            sinks=sinks if sinks is not None else attn_sink,
        )
        out = q.new_zeros(q.shape[0], layer.tp_q_head_num, layer.v_head_dim)

        def by_torch() -> torch.Tensor:
            for group in self.forward_metadata:
                attend(group, q, key_buffer, value_buffer, out, params)
            return out

        if self._twin_step is None or not self._twin.covers(layer, params.sinks):
            return by_torch().flatten(1)

        def by_twin() -> torch.Tensor:
            return self._twin.attend(self._twin_step, q, key_buffer, params.scaling)

        prefix_lens = self._twin_step.prefix_lens
        return self._switch.serve(layer, prefix_lens, ours=by_twin, delegate=by_torch).flatten(1)

    forward_decode = forward_extend

    def _visibility(self, layer: RadixAttention) -> Visibility:
        if layer.attn_type == AttentionType.DECODER:
            return Visibility.CAUSAL
        if layer.attn_type != AttentionType.ENCODER_ONLY:
            raise NotImplementedError(f"ddtree_sm120 on a CPU has no attention of type {layer.attn_type.value}")
        if self.forward_metadata.has_tree:
            raise ValueError(f"layer {layer.layer_id} attends in both directions and cannot follow a tree mask")
        return Visibility.BIDIRECTIONAL

    @staticmethod
    def _check_layer(layer: RadixAttention, unsupported: dict) -> None:
        """Refuse what would change the result if it were ignored."""
        given = sorted(name for name, value in unsupported.items() if value is not None)
        if given:
            raise NotImplementedError(f"ddtree_sm120 on a CPU does not implement {', '.join(given)}")
        if layer.is_cross_attention:
            raise NotImplementedError("ddtree_sm120 on a CPU has no cross attention")
        if layer.logit_cap and layer.logit_capping_method != "tanh":
            raise NotImplementedError(
                f"ddtree_sm120 on a CPU has no logit capping of kind {layer.logit_capping_method!r}"
            )
        if layer.xai_temperature_len > 0:
            raise NotImplementedError("ddtree_sm120 on a CPU has no length-dependent temperature")

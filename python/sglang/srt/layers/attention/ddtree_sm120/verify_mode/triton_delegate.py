# SPDX-License-Identifier: Apache-2.0
"""Upstream's Triton kernels for decode and verify, as the delegate of ``ddtree_sm120`` on a GPU.

Among SGLang's backends only this one applies a tree mask to MLA layers. It is asked through its own public methods;
what is done differently here is the size of its buffers for CUDA graphs. By itself it takes decode scratch and a
whole context of KV indices for every token of a verify window, which for a tree is tens of GiB. A verify uses no decode
scratch, and all tokens of a request share its indices, so a request counts once.
"""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mask_bytes import write_mask_bytes
from sglang.srt.speculative.eagle_utils import TreeMaskMode

if TYPE_CHECKING:
    from sglang.srt.layers.attention.ddtree_sm120.step_metadata import StepMetadata
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

logger = logging.getLogger(__name__)


class TritonDelegate:
    """Decode and verify by ``TritonAttnBackend``; a mask is always given to it, a chain's too.

    Attributes:
        graph_buffer_bytes: what its buffers for CUDA graphs take.
    """

    name = "triton"

    def __init__(self, runner: ModelRunner):
        from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

        self._backend = TritonAttnBackend(runner)
        self._decodes = not runner.spec_algorithm.is_speculative()
        self._max_context_len = runner.model_config.context_len
        self._device = runner.device
        self.graph_buffer_bytes = 0

    def init_cuda_graph_state(self, max_bs: int) -> None:
        """Buffers for graphs of up to ``max_bs`` requests."""
        before = torch.cuda.memory_allocated()
        kv_indices = torch.zeros(max_bs * self._max_context_len, dtype=torch.int64, device=self._device)
        self._backend.init_cuda_graph_state(max_bs, max_bs if self._decodes else 1, kv_indices_buf=kv_indices)
        mask = self._backend.verify_mask
        if mask is not None and mask.mode != TreeMaskMode.FULL_MASK:
            raise RuntimeError(f"ddtree verify: the triton backend reads masks of layout {mask.mode}, not FULL_MASK")
        self.graph_buffer_bytes = torch.cuda.memory_allocated() - before
        logger.info(
            "ddtree verify: the triton delegate's graph buffers for %d requests take %.1f MiB",
            max_bs,
            self.graph_buffer_bytes / 2**20,
        )

    def prepare_eager(self, forward_batch: ForwardBatch, step: StepMetadata) -> None:
        """Metadata of a forward without a graph."""
        if not forward_batch.forward_mode.is_target_verify():
            self._backend.init_forward_metadata(forward_batch)
            return
        batch, nodes = forward_batch.batch_size, step.num_nodes
        keys = forward_batch.seq_lens_sum
        keys = batch * self._max_context_len if keys is None else int(keys)
        mask = torch.empty(nodes * (keys + batch * nodes), dtype=torch.uint8, device=self._device)
        self._backend.init_forward_metadata(_with_mask(forward_batch, mask, nodes))
        self._write_mask(mask, forward_batch, step)

    def prepare_graph(self, forward_batch: ForwardBatch, step: StepMetadata, in_capture: bool) -> None:
        """Metadata before a capture or a replay, in the buffers of :meth:`init_cuda_graph_state`."""
        if not forward_batch.forward_mode.is_target_verify():
            self._backend.init_forward_metadata_out_graph(forward_batch, in_capture)
            return
        mask = self._backend.verify_mask.buffer
        # That there is a mask is what the backend looks at; of an empty one it copies nothing into its buffer.
        proxy = _with_mask(forward_batch, mask[:0], step.num_nodes)
        self._backend.init_forward_metadata_out_graph(proxy, in_capture)
        self._write_mask(mask, forward_batch, step)

    def _write_mask(self, mask: torch.Tensor, forward_batch: ForwardBatch, step: StepMetadata) -> None:
        write_mask_bytes(mask, self._backend.mask_indptr, forward_batch.seq_lens, step.prefix_lens, step.mask_words)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One layer, whose KV rows are in the pool already.

        Args: as of ``DDTreeSM120AttnBackend.forward_extend``.

        Returns:
            ``[T, H * Dv]``.
        """
        tokens = q.shape[0]
        if q_rope is not None:
            heads = layer.tp_q_head_num
            q = torch.cat([q.view(tokens, heads, -1), q_rope.view(tokens, heads, -1)], dim=-1)
        if k is not None and k_rope is not None:
            v = k.view(tokens, 1, -1)
            k = torch.cat([v, k_rope.view(tokens, 1, -1)], dim=-1)
        if forward_batch.forward_mode.is_target_verify():
            forward = self._backend.forward_extend
        else:
            forward = self._backend.forward_decode
        return forward(q.flatten(1), k, v, layer, forward_batch, save_kv_cache=False).view(tokens, -1)


def _with_mask(forward_batch: ForwardBatch, mask: torch.Tensor, num_nodes: int) -> ForwardBatch:
    """A view of the batch whose verify input says what the Triton backend reads of one."""
    view = copy.copy(forward_batch)
    view.spec_info = SimpleNamespace(custom_mask=mask, num_tokens_per_req=num_nodes)
    return view

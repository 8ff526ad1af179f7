# SPDX-License-Identifier: Apache-2.0
"""Which form of attention DeepSeek's layers compute when ``ddtree_sm120`` is the backend's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.model_executor.forward_context import get_attn_backend

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

# Attributes under which wrappers keep the backend that serves the target's full-attention layers.
_WRAPPED_IN = ("full_attn_backend", "primary", "prefill_backend")


def handle_attention_ddtree_sm120(attn, forward_batch: ForwardBatch):
    """The absorbed form, except that a prefill takes the form that the delegate asks for."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
        _dispatch_mla_subtype,
    )

    if forward_batch.forward_mode.is_extend_without_speculative():
        delegate = prefill_delegate_of(get_attn_backend())
        if delegate is not None:
            return AttentionBackendRegistry.get_handler(delegate)(attn, forward_batch)
    return _dispatch_mla_subtype(attn, forward_batch)


def prefill_delegate_of(backend: AttentionBackend) -> str | None:
    """Name of the backend that does the prefill for ``ddtree_sm120``, however wrapped; None on a CPU."""
    while backend is not None:
        name = getattr(backend, "prefill_backend_name", None)
        if name is not None:
            return name
        backend = next((inner for key in _WRAPPED_IN if (inner := getattr(backend, key, None)) is not None), None)
    return None

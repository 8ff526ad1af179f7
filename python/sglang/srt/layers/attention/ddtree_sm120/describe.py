# SPDX-License-Identifier: Apache-2.0
"""``/server_info`` of a server that runs ``ddtree_sm120`` on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

# Attributes under which SGLang's wrappers keep the backends that they choose from.
_WRAPPED_IN = ("full_attn_backend", "primary", "decode_backend", "prefill_backend")


def describe_backend(state: dict[str, Any], backend: AttentionBackend, draft_worker: object | None) -> None:
    """Add ``ddtree_sm120`` to ``state`` when the target or its draft runs on it, whatever wraps it."""
    draft_runner = getattr(draft_worker, "draft_model_runner", None)
    described = _description(backend) | _description(getattr(draft_runner, "attn_backend", None))
    if described:
        state["ddtree_sm120"] = described


def _description(backend: object) -> dict[str, Any]:
    """Of the backend itself, else of what it wraps."""
    if backend is None or hasattr(backend, "describe"):
        return {} if backend is None else backend.describe()
    described: dict[str, Any] = {}
    for key in _WRAPPED_IN:
        described |= _description(getattr(backend, key, None))
    return described

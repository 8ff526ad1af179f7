# SPDX-License-Identifier: Apache-2.0
"""``/server_info`` of a server that runs ``ddtree_sm120`` on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend


def describe_backend(state: dict[str, Any], backend: AttentionBackend, draft_worker: object | None) -> None:
    """Add ``ddtree_sm120`` to ``state`` when the target or its draft runs on it, alone or beside a prefill backend."""
    draft_runner = getattr(draft_worker, "draft_model_runner", None)
    described: dict[str, Any] = {}
    for candidate in (backend, getattr(backend, "decode_backend", None), getattr(draft_runner, "attn_backend", None)):
        if hasattr(candidate, "describe"):
            described |= candidate.describe()
    if described:
        state["ddtree_sm120"] = described

# SPDX-License-Identifier: Apache-2.0
"""``/server_info`` of a server that runs ``ddtree_sm120`` on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend


def describe_backend(state: dict[str, Any], backend: AttentionBackend) -> None:
    """Add ``ddtree_sm120`` to ``state`` when ``backend`` is that one, alone or beside a prefill backend."""
    for candidate in (backend, getattr(backend, "decode_backend", None)):
        describe = getattr(candidate, "describe", None)
        if describe is not None:
            state["ddtree_sm120"] = describe()
            return

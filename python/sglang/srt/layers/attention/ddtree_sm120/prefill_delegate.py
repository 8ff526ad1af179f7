# SPDX-License-Identifier: Apache-2.0
"""SGLang's own backend that does the prefill for ``ddtree_sm120`` on a GPU."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.runtime_context import get_platform

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.model_executor.model_runner import ModelRunner

logger = logging.getLogger(__name__)


def delegate_name() -> str:
    """flashinfer reads the latent rows once for all heads; triton, where flashinfer is missing, once a head."""
    return "flashinfer" if get_platform().has_flashinfer else "triton"


def build_delegate(runner: ModelRunner) -> tuple[str, AttentionBackend]:
    """Name and backend. Its ``init_cuda_graph_state`` must not be called: it would allocate decode buffers."""
    name = delegate_name()
    backend = ATTENTION_BACKENDS[name](runner)
    logger.info(
        "ddtree_sm120: prefill runs on %s (for another one: --prefill-attention-backend NAME "
        "--decode-attention-backend ddtree_sm120)",
        name,
    )
    return name, backend


def takes_split_queries(name: str) -> bool:
    """Whether the delegate takes latent and rotary parts apart, as the model hands them to ``ddtree_sm120``."""
    return name == "flashinfer"

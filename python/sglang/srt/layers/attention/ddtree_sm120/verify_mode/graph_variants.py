# SPDX-License-Identifier: Apache-2.0
"""One set of captured decode or verify graphs for each mode, so that a switch takes another set and nothing else.

A captured graph has its kernels frozen. SGLang's decode runner can capture several variants of each shape and choose
one a step; they share the static buffers and the memory pool of the graphs. Here the mode is the variant.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import VerifyMode
from sglang.srt.model_executor.runner_utils.pool import get_global_graph_memory_pool

if TYPE_CHECKING:
    from sglang.srt.layers.attention.ddtree_sm120.verify_mode.switch import VerifySwitch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

logger = logging.getLogger(__name__)


class VerifyGraphVariants:
    """SGLang's ``AttentionGraphVariants``: what to capture, and which one serves a batch."""

    def __init__(self, switch: VerifySwitch):
        self._switch = switch
        # The last set reuses the pool's memory of those before; validate needs most and comes first.
        order = sorted(switch.modes, key=lambda mode: mode is not VerifyMode.VALIDATE)
        self.capture_labels = tuple(mode.value for mode in order)

    def select(self, forward_batch: ForwardBatch) -> str:
        return self._switch.mode.value


def graph_variants_of(runner: ModelRunner) -> VerifyGraphVariants | None:
    """For a target on ``ddtree_sm120``; None for every other model runner."""
    if runner.is_draft_worker:
        return None
    switch = getattr(runner, "verify_switch", None)
    return None if switch is None else VerifyGraphVariants(switch)


class GraphMemory:
    """Adds what one capture took to the mode that was captured: by how much torch's reserved memory in the pool of the
    graphs grew.

    That is this process's own, so other processes on the card do not count, and neither does what torch gives back from
    its other pools before a capture. The pool does not shrink while graphs live. What the driver keeps for a graph
    beside torch is not in it.

    Args:
        runner: of the graphs.
        variant: label of the capture; None when there are no variants.
    """

    def __init__(self, runner: ModelRunner, variant: str | None):
        self._switch = getattr(runner, "verify_switch", None)
        self._mode = None if self._switch is None or variant is None else VerifyMode(variant)
        self._before = 0 if self._mode is None else _reserved_for_graphs()

    def close(self) -> None:
        if self._mode is None:
            return
        used = self._switch.graph_bytes
        used[self._mode] = used.get(self._mode, 0) + _reserved_for_graphs() - self._before


def _reserved_for_graphs() -> int:
    """Bytes of the segments that torch's allocator holds in the pool that all captured graphs share."""
    pool, device = get_global_graph_memory_pool(), torch.cuda.current_device()
    return sum(
        segment["total_size"]
        for segment in torch.cuda.memory_snapshot()
        if segment["segment_pool_id"] == pool and segment["device"] == device
    )

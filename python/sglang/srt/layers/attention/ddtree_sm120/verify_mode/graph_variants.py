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
    """Adds what the device lost during one capture to the mode that was captured.

    Args:
        runner: of the graphs.
        variant: label of the capture; None when there are no variants.
    """

    def __init__(self, runner: ModelRunner, variant: str | None):
        self._switch = getattr(runner, "verify_switch", None)
        self._mode = None if self._switch is None or variant is None else VerifyMode(variant)
        self._free_before = self._free()

    def _free(self) -> int:
        return 0 if self._mode is None else torch.cuda.mem_get_info()[0]

    def close(self) -> None:
        if self._mode is None:
            return
        used = self._switch.graph_bytes
        used[self._mode] = used.get(self._mode, 0) + self._free_before - self._free()

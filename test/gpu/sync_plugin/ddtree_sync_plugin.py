# SPDX-License-Identifier: Apache-2.0
"""SGLang plugin: a decode step of DDTREE that waits for the device ends the server.

``test_server_step_sync.py`` puts this on a server's path. PyTorch raises at every
operation that would make the host wait: a value read back, a shape that depends
on data, a blocking copy.
"""

from __future__ import annotations

import itertools
import logging

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

logger = logging.getLogger(__name__)

STEP = "sglang.srt.speculative.ddtree.worker.DDTreeWorker.forward_batch_generation"
# The first steps compile kernels and load modules, which waits.
WARM_UP_STEPS = 16

numbers = itertools.count(1)


def guarded(forward, worker, batch, *args, **kwargs):
    """One step; from the last warm-up step on, an error instead of a wait."""
    if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
        return forward(worker, batch, *args, **kwargs)
    number = next(numbers)
    if number <= WARM_UP_STEPS:
        return forward(worker, batch, *args, **kwargs)
    if number % 16 == 0:
        logger.info("ddtree-sync-plugin: %d steps guarded", number - WARM_UP_STEPS)
    torch.cuda.set_sync_debug_mode("error")
    try:
        return forward(worker, batch, *args, **kwargs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def register() -> None:
    """Entry point, group ``sglang.srt.plugins``."""
    HookRegistry.register(STEP, guarded, HookType.AROUND)

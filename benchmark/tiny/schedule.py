# SPDX-License-Identifier: Apache-2.0
"""How far a training run has come, by steps or by the clock, and the learning rate there."""

from __future__ import annotations

import time

import torch
from torch import nn

_WARM_UP_STEPS = 100


class Schedule:
    """Runs from 0 to 1 over ``steps`` steps or ``seconds`` seconds, whichever ends first.

    A run that its steps end is the same each time on the same machine; one that the
    clock ends is not, and :attr:`by_clock` says so.
    """

    def __init__(self, steps: int, seconds: float) -> None:
        self.steps, self.seconds = steps, seconds
        self.step = 0
        self._began = time.monotonic()
        self.by_clock = False

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def done(self) -> float:
        """Share of the run that is behind us."""
        by_steps, by_clock = self.step / self.steps, self.elapsed / self.seconds
        self.by_clock |= by_clock > by_steps
        return max(by_steps, by_clock)

    def rate(self) -> float:
        """Learning rate as a share of its peak: down to 0 in a straight line, after a rise over the first steps."""
        return max(0.0, 1 - self.done) * min(1.0, (self.step + 1) / _WARM_UP_STEPS)


def optimizer(model: nn.Module, peak: float, decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves norms alone."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=True)

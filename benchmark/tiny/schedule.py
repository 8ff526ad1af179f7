# SPDX-License-Identifier: Apache-2.0
"""How many steps a training run takes, and the learning rate at each."""

from __future__ import annotations

import math

import torch
from torch import nn

_WARM_UP_STEPS = 100


class Schedule:
    """The learning rate rises over the first steps and then falls to 0 in a straight line.

    With a limit of seconds, :meth:`fit` shortens the run once, from the speed of its
    first steps. The rates up to there do not hang on the length of the run, so a run of
    as many steps without a limit is the same run.
    """

    def __init__(self, steps: int, seconds: float = math.inf) -> None:
        self.steps, self.seconds = steps, seconds
        self.warm_up = _WARM_UP_STEPS if steps >= 5 * _WARM_UP_STEPS else max(1, steps // 5)

    def fit(self, step: int, elapsed: float) -> None:
        """After ``step`` steps in ``elapsed`` seconds: take as many as the seconds allow, in whole hundreds."""
        possible = self.seconds * step / elapsed
        if possible < self.steps:
            self.steps = max(5 * _WARM_UP_STEPS, int(possible) // 100 * 100)

    def rate(self, step: int) -> float:
        """Learning rate at a step as a share of its peak."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        return (self.steps - step) / (self.steps - self.warm_up)


def optimizer(model: nn.Module, decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves norms alone. Its rate is a tensor on the model's device."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    device = matrices[0].device
    rate = torch.zeros((), device=device)
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True, capturable=device.type == "cuda")

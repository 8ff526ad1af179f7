# SPDX-License-Identifier: Apache-2.0
"""One optimiser step, which a CUDA graph replays on a GPU.

The models are so small that launching a step's kernels takes several times as long
as running them. What changes from step to step are random numbers: they are drawn on
the CPU, many steps at a time, so every device trains on the same examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Steps whose numbers are drawn at a time.
_CHUNK = 256
# Steps that run as they are before one is captured: cuBLAS, autograd and Adam set themselves up in them.
_BEFORE_CAPTURE = 3


@dataclass(frozen=True)
class Variety:
    """A kind of step.

    Attributes:
        draw: gives int64 [count, width], the random numbers of ``count`` steps.
        loss: of the numbers [width] of one step, on the model's device.
        tokens: that a step predicts.
    """

    draw: Callable[[int], Tensor]
    loss: Callable[[Tensor], Tensor]
    tokens: int


class Step:
    """Takes optimiser steps of one variety.

    Args:
        total: 0-dim float32; each step adds its loss.
        graphs: replay a CUDA graph; only on a GPU.
    """

    def __init__(
        self, model: nn.Module, adam: torch.optim.Optimizer, variety: Variety, total: Tensor, *, graphs: bool
    ) -> None:
        self._model, self._adam, self._variety, self._total = model, adam, variety, total
        self._graphs = graphs
        self._graph: torch.cuda.CUDAGraph | None = None
        self._numbers = variety.draw(_CHUNK).to(total.device)
        self._at = torch.zeros(1, dtype=torch.int64, device=total.device)
        self._taken = 0

    def __call__(self) -> None:
        if self._taken and self._taken % _CHUNK == 0:
            self._numbers.copy_(self._variety.draw(_CHUNK))
            self._at.zero_()
        if self._graphs and self._taken >= _BEFORE_CAPTURE:
            if self._graph is None:
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph, stream=torch.cuda.current_stream()):
                    self._run()
            self._graph.replay()
        else:
            self._run()
        self._taken += 1

    def _run(self) -> None:
        device = self._total.device
        numbers = self._numbers.index_select(0, self._at)[0]
        self._at += 1
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = self._variety.loss(numbers)
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        self._total += loss.detach()

# SPDX-License-Identifier: Apache-2.0
"""Parts that target and drafter share. Shapes: B sequences, T tokens, H heads, D a head's width."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.tiny.sizes import BLOCK, EPS, LONGEST, THETA

_SPREAD = 0.02


class Linear(nn.Linear):
    """Without bias, drawn from a narrow normal distribution; ``narrow`` divides it further."""

    def __init__(self, inputs: int, outputs: int, narrow: float = 1.0) -> None:
        super().__init__(inputs, outputs, bias=False)
        nn.init.normal_(self.weight, std=inputs**-0.5 / narrow)


class Norm(nn.RMSNorm):
    """RMS normalisation over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        # The fused kernel wants one dtype.
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class SwiGLU(nn.Module):
    """The MLP of all layers."""

    def __init__(self, hidden: int, intermediate: int, narrow: float) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, intermediate)
        self.up_proj = Linear(hidden, intermediate)
        self.down_proj = Linear(intermediate, hidden, narrow)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rope(x: Tensor, positions: Tensor, *, interleaved: bool) -> Tensor:
    """Turn ``x`` [B, H, T, D] to its positions, [T] or [B, T].

    The pairs are (0, 1), (2, 3), ... if ``interleaved``, as in DeepSeek's MLA, else (0, D/2), (1, D/2 + 1), ...
    """
    half = x.shape[-1] // 2
    cos, sin = (
        table.index_select(0, positions.flatten()).view(*positions.shape, half) for table in _turns(half, x.device)
    )
    if positions.ndim == 2:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if interleaved:
        first, second = x.float().unflatten(-1, (half, 2)).unbind(-1)
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)
    else:
        first, second = x.float().chunk(2, -1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return turned.to(x.dtype)


@lru_cache
def _turns(half: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, half] up to the end of a block that begins at the end of the context."""
    rate = THETA ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angle = torch.arange(LONGEST + BLOCK, device=device, dtype=torch.float32).unsqueeze(-1) * rate
    return angle.cos(), angle.sin()


def heads(x: Tensor, width: int) -> Tensor:
    """[B, T, H * D] as [B, H, T, D]."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """[B, H, T, D] as [B, T, H * D]."""
    return x.transpose(1, 2).flatten(-2)


def embedding(entries: int, hidden: int) -> nn.Embedding:
    """A table of token vectors."""
    table = nn.Embedding(entries, hidden)
    nn.init.normal_(table.weight, std=_SPREAD * 5)
    return table

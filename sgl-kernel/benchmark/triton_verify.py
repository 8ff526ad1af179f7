# SPDX-License-Identifier: Apache-2.0
"""SGLang's Triton verify attention, called as its Triton backend calls it: the rival of the benchmark and of the tests."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch

MODULE = "sglang.kernels.ops.attention.extend_attention"
LATENT_DIM = 512


def triton_kernel() -> Callable[..., None] | None:
    """The pinned SGLang's kernel, or None where it is not installed."""
    try:
        return importlib.import_module(MODULE).extend_attention_fwd
    except ImportError:
        return None


def triton_call(
    kernel: Callable[..., None],
    q: torch.Tensor,
    pool: torch.Tensor,
    tokens: list[torch.Tensor],
    trees: torch.Tensor,
    sm_scale: float,
    out: torch.Tensor,
) -> Callable[[], None]:
    """A call that writes `out`; everything that it reads is made here, so that it can be captured and timed.

    q [B*N, H, 576], pool [slots, 576], tokens: B tensors [length + N] with the pool row of each token, trees bool [B, N, N]
    (node i sees node j), out [B*N, H, 512]. The mask covers the prefix as well, which is what the kernel asks for.
    """
    device, nodes = q.device, trees.shape[-1]
    pool = pool.unsqueeze(1) if pool.ndim == 2 else pool
    tokens = [rows.long() for rows in tokens]
    lens = [len(rows) - nodes for rows in tokens]
    window = pool[torch.cat([rows[n:] for rows, n in zip(tokens, lens)])]
    masks = [torch.cat([tree.new_ones(nodes, n), tree], 1).reshape(-1) for tree, n in zip(trees, lens)]

    def offsets(sizes: list[int]) -> torch.Tensor:
        return torch.tensor([0, *sizes], device=device).cumsum(0)

    arguments = (
        q,
        window,
        window[..., :LATENT_DIM],
        out,
        pool,
        pool[..., :LATENT_DIM],
        offsets([nodes] * len(lens)).int(),
        offsets(lens).int(),
        torch.cat([rows[:n] for rows, n in zip(tokens, lens)]),
        torch.cat(masks),
        False,
        offsets([mask.numel() for mask in masks]),
        nodes,
        1.0,
        1.0,
    )
    return lambda: kernel(*arguments, sm_scale=sm_scale)

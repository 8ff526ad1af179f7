# SPDX-License-Identifier: Apache-2.0
"""``UlpTotals.add`` as one Triton launch. The definitions are in ``ulp.py``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.ulp import (
    BEYOND,
    BEYOND_ULP,
    CEILING,
    FRACTION_BITS,
    MAX,
    MEAN,
    NOT_FINITE,
    ROWS,
    SMALLEST,
)

_ROWS_PER_PROGRAM = 4


def add_rows(totals: torch.Tensor, served: torch.Tensor, ours: torch.Tensor, prefix_lens: torch.Tensor) -> None:
    """
    Args:
        totals: ``[COLUMNS]`` int64, contiguous.
        served, ours: ``[B * N, H, D]``, contiguous, of one dtype.
        prefix_lens: ``[B]`` int32, contiguous.
    """
    width = served.shape[-1]
    num_rows = served.numel() // width
    if num_rows == 0:
        return
    _add_rows_kernel[(triton.cdiv(num_rows, _ROWS_PER_PROGRAM),)](
        totals,
        served,
        ours,
        prefix_lens,
        num_rows,
        num_rows // prefix_lens.numel(),
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
        TILE=_ROWS_PER_PROGRAM,
        SMALLEST=SMALLEST,
        CEILING=CEILING,
        SCALE=float(1 << FRACTION_BITS),
        BEYOND_ULP=BEYOND_ULP,
        ROWS=ROWS,
        BEYOND=BEYOND,
        NOT_FINITE=NOT_FINITE,
        MEAN=MEAN,
        MAX=MAX,
    )


# A batch of another size must not compile the kernel again in the middle of serving.
@triton.jit(do_not_specialize=["num_rows", "rows_per_request"])
def _add_rows_kernel(
    totals,
    served_rows,
    our_rows,
    prefix_lens,
    num_rows,
    rows_per_request,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    SMALLEST: tl.constexpr,
    CEILING: tl.constexpr,
    SCALE: tl.constexpr,
    BEYOND_ULP: tl.constexpr,
    ROWS: tl.constexpr,
    BEYOND: tl.constexpr,
    NOT_FINITE: tl.constexpr,
    MEAN: tl.constexpr,
    MAX: tl.constexpr,
):
    """Program p: rows p * TILE and the next ones; at most five atomics."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    exists = row < num_rows
    real = exists & (tl.load(prefix_lens + row // rows_per_request, mask=exists, other=-1) >= 0)
    column = tl.arange(0, COLUMNS)
    offset = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    inside = real[:, None] & (column < WIDTH)[None, :]
    served = tl.load(served_rows + offset, mask=inside, other=0.0).to(tl.float32)
    ours = tl.load(our_rows + offset, mask=inside, other=0.0).to(tl.float32)

    # x - x is 0 for every finite x and NaN for the others.
    broken = ((served - served) != 0.0) | ((ours - ours) != 0.0)
    finite = tl.max(broken.to(tl.int32), axis=1) == 0
    counted = real & finite
    served = tl.where(counted[:, None], served, 0.0)
    ours = tl.where(counted[:, None], ours, 0.0)

    rms = tl.sqrt(tl.sum(served * served, axis=1) / WIDTH)
    size = tl.maximum(tl.maximum(tl.abs(served), rms[:, None]), SMALLEST)
    unit = (size.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True) * 0.0078125
    error = tl.minimum(tl.abs(ours - served) / unit, CEILING)
    worst = tl.max(error, axis=1)
    mean = tl.sum(error, axis=1) / WIDTH

    tl.atomic_add(totals + ROWS, tl.sum(real.to(tl.int64)), sem="relaxed")
    tl.atomic_add(totals + MEAN, tl.sum((mean * SCALE).to(tl.int64)), sem="relaxed")
    tl.atomic_max(totals + MAX, tl.max((worst * SCALE).to(tl.int64), axis=0), sem="relaxed")
    beyond = tl.sum((worst > BEYOND_ULP).to(tl.int64))
    if beyond > 0:
        tl.atomic_add(totals + BEYOND, beyond, sem="relaxed")
    not_finite = tl.sum((real & (finite == 0)).to(tl.int64))
    if not_finite > 0:
        tl.atomic_add(totals + NOT_FINITE, not_finite, sem="relaxed")

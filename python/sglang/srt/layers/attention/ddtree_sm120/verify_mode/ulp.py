# SPDX-License-Identifier: Apache-2.0
"""How far two attention outputs are apart, added up on the device.

A row is one head's output for one token. The error of an element is ``|ours - served|`` in bf16 units in the last place
of ``max(|served|, rms(row of served))``, at least of 2**-100: ``unit = 2 ** (floor(log2(x)) - 7)``, whatever the dtype.
Elements near zero are so measured against the size of their row; in their own units two right kernels would differ by
hundreds. Rows with NaN or infinity in either output are counted and otherwise left out.

Sums are integers in fixed point, so neither the order of additions nor their number changes a result; an error counts
as 65,536 units at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Columns of the totals. MEAN is the sum of the rows' mean errors; MEAN and MAX count in 2**-20 units.
ROWS, BEYOND, NOT_FINITE, MEAN, MAX = range(5)
COLUMNS = 5
FRACTION_BITS = 20
CEILING = 65536.0
BEYOND_ULP = 2.0
SMALLEST = 2.0**-100


@dataclass(frozen=True)
class UlpReport:
    """What was compared.

    Attributes:
        rows: rows compared, those not finite included.
        max_ulp, mean_ulp: over the elements of finite rows; 0 without any.
        rows_beyond_2_ulp: finite rows with an element off by more than 2.
        rows_not_finite: rows with NaN or infinity in either output.
        worst_layer: layer of ``max_ulp``; None when nothing was compared.
    """

    rows: int
    max_ulp: float
    mean_ulp: float
    rows_beyond_2_ulp: int
    rows_not_finite: int
    worst_layer: int | None

    @classmethod
    def of(cls, totals: torch.Tensor, first_layer: int) -> UlpReport:
        """
        Args:
            totals: ``[..., layers, COLUMNS]`` int64 on the host; leading dimensions are ranks.
            first_layer: id of layer 0.
        """
        ranks = totals.view(-1, *totals.shape[-2:])
        rows, beyond, not_finite, mean = ranks[..., :MAX].sum((0, 1)).tolist()
        worst = ranks[..., MAX].amax(0)
        scale = 1 << FRACTION_BITS
        return cls(
            rows=rows,
            max_ulp=int(worst.max()) / scale,
            mean_ulp=mean / scale / max(rows - not_finite, 1),
            rows_beyond_2_ulp=beyond,
            rows_not_finite=not_finite,
            worst_layer=first_layer + int(worst.argmax()) if rows else None,
        )


class UlpTotals:
    """Accumulators of one rank, ``[layers, COLUMNS]`` int64; their addresses never change.

    Args:
        num_layers: layers of this rank.
        first_layer: id of the first.
        device: of the outputs.
    """

    def __init__(self, num_layers: int, first_layer: int, device: torch.device | str):
        self.first_layer = first_layer
        self.values = torch.zeros(num_layers, COLUMNS, dtype=torch.int64, device=device)

    def add(self, layer_id: int, served: torch.Tensor, ours: torch.Tensor, prefix_lens: torch.Tensor) -> None:
        """Compare the outputs of one layer; launches at most one kernel and may be captured in a CUDA graph.

        Args:
            layer_id: of the layer.
            served, ours: ``[B * N, H, D]``, contiguous, of one dtype.
            prefix_lens: ``[B]`` int32; rows of requests with a negative one are padding and not counted.
        """
        row = self.values[layer_id - self.first_layer]
        if served.is_cuda:
            from sglang.srt.layers.attention.ddtree_sm120.verify_mode.ulp_kernel import add_rows
        else:
            add_rows = add_rows_torch
        add_rows(row, served, ours, prefix_lens)

    def reset(self) -> None:
        self.values.zero_()


def add_rows_torch(totals: torch.Tensor, served: torch.Tensor, ours: torch.Tensor, prefix_lens: torch.Tensor) -> None:
    """The same in torch; the reference of the kernel.

    Args:
        totals: ``[COLUMNS]`` int64, added to.
        served, ours: ``[B * N, H, D]``.
        prefix_lens: ``[B]``.
    """
    tokens_per_request = served.shape[0] // max(prefix_lens.numel(), 1)
    real = (prefix_lens >= 0).repeat_interleave(tokens_per_request)
    served, ours = (output[real].flatten(0, 1).float() for output in (served, ours))
    finite = served.isfinite().all(-1) & ours.isfinite().all(-1)
    totals[ROWS] += finite.numel()
    totals[NOT_FINITE] += (~finite).sum()
    served, ours = served[finite], ours[finite]
    if served.shape[0] == 0:
        return
    rms = served.square().mean(-1, keepdim=True).sqrt()
    error = ((ours - served).abs() / bf16_unit(torch.maximum(served.abs(), rms))).clamp_max(CEILING)
    worst = error.amax(-1)
    scale = 1 << FRACTION_BITS
    totals[BEYOND] += (worst > BEYOND_ULP).sum()
    totals[MEAN] += (error.mean(-1) * scale).long().sum()
    totals[MAX] = torch.maximum(totals[MAX], (worst * scale).long().max())


def bf16_unit(x: torch.Tensor) -> torch.Tensor:
    """Distance of neighbouring bf16 numbers at ``x``, float32 and not negative."""
    power = (x.clamp_min(SMALLEST).view(torch.int32) & 0x7F800000).view(torch.float32)
    return power * 2.0**-7

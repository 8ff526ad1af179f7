# SPDX-License-Identifier: Apache-2.0
"""How far the outputs of both kernels, and the nearest possible one, are from the reference, added up on the device."""

from __future__ import annotations

import math

import torch

# Columns of the totals. Of each output: the sum of squares of its distance, its largest one, and rows that are not
# finite, which are in neither of the two.
STEPS, ROWS, LEFT_OUT, REFERENCE, REFERENCE_NOT_FINITE = range(5)
OUTPUTS = ("ours", "delegate", "rounded")
_FIRST = {name: 5 + 3 * number for number, name in enumerate(OUTPUTS)}
SQUARES, LARGEST, NOT_FINITE = range(3)
COLUMNS = 5 + 3 * len(OUTPUTS)


class ErrorTotals:
    """Float64 sums for each layer; their addresses never change, so additions may be captured in a CUDA graph.

    Args:
        num_layers: layers of this rank.
        first_layer: id of the first.
        device: of the outputs.
    """

    def __init__(self, num_layers: int, first_layer: int, device: torch.device | str):
        self._first_layer = first_layer
        self._values = torch.zeros(num_layers, COLUMNS, dtype=torch.float64, device=device)

    def reset(self) -> None:
        self._values.zero_()

    def add(
        self,
        layer_id: int,
        reference: torch.Tensor,
        ours: torch.Tensor,
        delegate: torch.Tensor,
        real: torch.Tensor,
        fits: torch.Tensor,
    ) -> None:
        """
        Args:
            layer_id: of the layer.
            reference: ``[B, N, H, D]`` float64.
            ours, delegate: as many numbers, in their own dtype.
            real: ``[B]`` bool, requests that are no padding.
            fits: ``[B]`` bool, requests whose reference is meaningful; the other real ones are counted as left out.
        """
        totals = self._values[layer_id - self._first_layer]
        _, nodes, heads, _ = reference.shape
        counted = (real & fits)[:, None, None, None]
        sane = reference.isfinite().all(-1, keepdim=True)
        size = reference.masked_fill(~(counted & sane), 0).square().sum()
        rows = nodes * heads * torch.stack([(real & fits).sum(), (real & ~fits).sum()])
        columns = torch.stack([real.any().double(), *rows.double(), size, (counted & ~sane).sum().double()])
        totals[: len(columns)].add_(columns)
        # No output of that dtype can be nearer than the reference rounded to it.
        for name, given in zip(OUTPUTS, (ours, delegate, reference.to(ours.dtype)), strict=True):
            output = given.reshape(reference.shape).double()
            finite = output.isfinite().all(-1, keepdim=True)
            distance = (output - reference).masked_fill(~(counted & sane & finite), 0)
            own = totals[_FIRST[name] : _FIRST[name] + 3]
            own[SQUARES].add_(distance.square().sum())
            own[LARGEST].copy_(torch.maximum(own[LARGEST], distance.abs().amax()))
            own[NOT_FINITE].add_((counted & ~finite).sum())

    def report(self) -> dict:
        """What was added up; waits for the device.

        Returns:
            ``steps`` in which every layer was compared; ``rows`` (one head of one node) compared, ``rows_left_out``,
            ``reference_rows_not_finite``; and of each output ``error`` (Frobenius norm of the distance over that of the
            reference), ``error_of_layers``, ``largest`` (distance of one number), ``rows_not_finite``. Errors are None
            before the first step.
        """
        layers = self._values.cpu()
        total = layers.sum(0)
        found: dict = {
            "steps": int(layers[:, STEPS].min()),
            "rows": int(total[ROWS]),
            "rows_left_out": int(total[LEFT_OUT]),
            "reference_rows_not_finite": int(total[REFERENCE_NOT_FINITE]),
        }
        for name in OUTPUTS:
            squares, largest, not_finite = (_FIRST[name] + column for column in (SQUARES, LARGEST, NOT_FINITE))
            found[name] = {
                "error": _relative(total[squares], total[REFERENCE]),
                "error_of_layers": [_relative(row[squares], row[REFERENCE]) for row in layers],
                "largest": float(layers[:, largest].max()),
                "rows_not_finite": int(total[not_finite]),
            }
        return found


def _relative(squares: torch.Tensor, reference: torch.Tensor) -> float | None:
    return math.sqrt(float(squares) / float(reference)) if reference > 0 else None

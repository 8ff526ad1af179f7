# SPDX-License-Identifier: Apache-2.0
"""Figures of docs/cutover.md: the comparison of two kernels in a server, as the GPU test of the cutover saw it."""

from __future__ import annotations

from benchmark.receipts.figures.registry import figure
from benchmark.receipts.store import Store

CUTOVER = "cutover-NVIDIA-H200"


@figure("cutover.compared")
def compared(store: Store) -> str:
    """Mean, largest and share of rows, of the pair that has near ties."""
    (seen,) = next(r["validation"] for r in store[CUTOVER]["results"] if r["pair"] == "trained-mla" and r["validation"])
    share = seen["rows_beyond_2_ulp"] / seen["rows"]
    return (
        f"a mean error of {seen['mean_ulp']:.3f}, a largest of {seen['max_ulp']:.1f}, and {share:.2%} of "
        f"{seen['rows']:,} rows beyond 2"
    )

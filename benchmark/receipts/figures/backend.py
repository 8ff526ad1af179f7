# SPDX-License-Identifier: Apache-2.0
"""Figures of docs/backend.md."""

from __future__ import annotations

import statistics

from benchmark.receipts.figures.registry import figure, table
from benchmark.receipts.store import Store

STEP_METADATA = "step_metadata-NVIDIA-H200"


@figure("backend.step-metadata")
def step_metadata(store: Store) -> str:
    """Words of DDTREE: batch and page size down, context across."""
    rows = [row for row in store[STEP_METADATA]["results"] if row["layout"] == "WORDS"]
    contexts = sorted({row["context"] for row in rows})
    medians = {(row["batch"], row["page_size"], row["context"]): row["median_us"] for row in rows}
    head = ["batch", "page size", f"{contexts[0]:,} tokens", *(f"{context:,}" for context in contexts[1:])]
    return table(
        head,
        (
            [batch, page, *(f"{medians[batch, page, context]:.1f}" for context in contexts)]
            for batch, page in sorted({(batch, page) for batch, page, _ in medians})
        ),
    )


@figure("backend.step-metadata-host")
def step_metadata_host(store: Store) -> str:
    host = [row["host_us"] for row in store[STEP_METADATA]["results"]]
    return f"{min(host):.0f} to {max(host):.0f} µs of the host ({statistics.median(host):.0f} in the median)"

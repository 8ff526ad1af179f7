# SPDX-License-Identifier: Apache-2.0
"""Figures of docs/serving-performance.md."""

from __future__ import annotations

from benchmark.receipts.figures.registry import figure
from benchmark.receipts.store import Store
from benchmark.serve.report import profile_table, step_table

SERVE = "serve-NVIDIA-H200"


@figure("serve.steps")
def steps(store: Store) -> str:
    """Servers down, context lengths across."""
    return step_table(store[SERVE]["results"])


@figure("serve.profile")
def profile(store: Store) -> str:
    """Kinds of work down, servers and context lengths across."""
    return profile_table(store[SERVE]["results"])


def _total(store: Store, draft: str, context: int, *, but: tuple[str, ...] = ()) -> float:
    (row,) = (r for r in store[SERVE]["results"] if (r["draft_backend"], r["context"]) == (draft, context))
    return sum(micros for kind, micros in row["profile"]["kinds"].items() if kind not in but)


@figure("serve.device-busy")
def device_busy(store: Store) -> str:
    """What the device works in a step with the draft on flashinfer, at the shortest and the longest context."""
    gaps = ("gaps between kernels",)
    contexts = sorted({r["context"] for r in store[SERVE]["results"]})
    low, high = (_total(store, "flashinfer", c, but=gaps) / 1e3 for c in (contexts[0], contexts[-1]))
    return f"{low:.2f} ms at {contexts[0]:,} tokens and {high:.2f} ms at {contexts[-1]:,}"

# SPDX-License-Identifier: Apache-2.0
"""Figures of docs/serving-performance.md."""

from __future__ import annotations

from benchmark.receipts.figures.registry import figure
from benchmark.receipts.store import Store
from benchmark.serve.report import Result, profile_table, step_table

SERVE, OURS = "serve-NVIDIA-H200", "ddtree_sm120"
GAPS = "gaps between kernels"


@figure("serve.steps")
def steps(store: Store) -> str:
    """Servers down, context lengths across."""
    return step_table(store[SERVE]["results"])


@figure("serve.profile")
def profile(store: Store) -> str:
    """Kinds of work down, servers and context lengths across."""
    return profile_table(store[SERVE]["results"])


def _single(store: Store, backend: str) -> list[Result]:
    """DFLASH with one step a turn on ``backend``, the shortest context first."""
    rows = [
        row
        for row in store[SERVE]["results"]
        if (row["algorithm"], row["backend"], row["turn_ms"]) == ("DFLASH", backend, 0)
    ]
    return sorted(rows, key=lambda row: row["context"])


def _chained(store: Store, algorithm: str) -> list[Result]:
    """Several steps a turn on ours, the shortest context first."""
    rows = [row for row in store[SERVE]["results"] if row["algorithm"] == algorithm and row["turn_ms"]]
    return sorted(rows, key=lambda row: row["context"])


def _listed(numbers: list[float], digits: int, unit: str = "ms") -> str:
    *most, last = (f"{number:.{digits}f}" for number in numbers)
    return f"{', '.join(most)} and {last} {unit}"


@figure("serve.dflash-single")
def dflash_single(store: Store) -> str:
    """DFLASH, one step a turn: ms a step at each context."""
    return _listed([row["median_ms"] for row in _single(store, OURS)], 2)


@figure("serve.dflash-turns")
def dflash_turns(store: Store) -> str:
    return _listed([row["median_ms"] for row in _chained(store, "DFLASH")], 2)


@figure("serve.ddtree-turns")
def ddtree_turns(store: Store) -> str:
    return _listed([row["median_ms"] for row in _chained(store, "DDTREE")], 2)


@figure("serve.dflash-faster")
def dflash_faster(store: Store) -> str:
    """Triton's step over ours with several steps a turn."""
    pairs = zip(_single(store, "triton"), _chained(store, "DFLASH"), strict=True)
    return _listed([triton["median_ms"] / ours["median_ms"] for triton, ours in pairs], 0, "times")


@figure("serve.dflash-triton")
def dflash_triton(store: Store) -> str:
    """DFLASH on SGLang's Triton backend."""
    return _listed([row["median_ms"] for row in _single(store, "triton")], 1)


@figure("serve.device-busy")
def device_busy(store: Store) -> str:
    """What the device works in a step, at the shortest and the longest context."""
    rows = _single(store, OURS)
    low, high = (
        sum(micros for kind, micros in row["profile"]["kinds"].items() if kind != GAPS) / 1e3
        for row in (rows[0], rows[-1])
    )
    return f"{low:.2f} ms at {rows[0]['context']:,} tokens and {high:.2f} ms at {rows[-1]['context']:,}"

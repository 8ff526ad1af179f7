# SPDX-License-Identifier: Apache-2.0
"""Figures of docs/trained-pair.md: tokens a step by algorithm and tree."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmark.receipts.figures.registry import figure, table
from benchmark.receipts.store import Store

KINDS = ("mla", "gqa")
TOPK = 8
MODES = ("greedy", "temperature 1")


def _rows(store: Store, kind: str, how: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows by name and mode."""
    return {(row["name"], row["mode"]): row for row in store[f"accept-{kind}"]["results"] if row["how"] == how}


def _cell(row: dict[str, Any]) -> str:
    if "ahead_interval_95" not in row:
        return f"{row['accept_length']:.2f}"
    low, high = row["ahead_interval_95"]
    return f"{row['accept_length']:.2f} ({low:+.2f} to {high:+.2f})"


def lengths(store: Store, kind: str) -> str:
    """Chain, trees and NGRAM down, modes across."""
    replayed, served = _rows(store, kind, "replay"), _rows(store, kind, "server")
    budgets = sorted({row["budget"] for row in replayed.values() if "budget" in row})
    names = [("DFLASH", replayed), *((f"DDTREE budget {budget}, K {TOPK}", replayed) for budget in budgets)]
    names.append(("NGRAM", served))
    return table(
        ["", *MODES],
        (
            [f"{name}, in the server" if rows is served else name, *(_cell(rows[name, m]) for m in MODES)]
            for name, rows in names
        ),
    )


def spine(store: Store, kind: str) -> str:
    """What the spine gains, by budget."""
    replayed = _rows(store, kind, "replay")
    rows = [row for row in replayed.values() if row.get("spine") and row["topk"] == TOPK]
    return table(
        ["budget", *MODES],
        (
            [
                budget,
                *(
                    f"{row['spine_gain']:+.2f} ({row['spine_gain_interval_95'][0]:+.2f} to "
                    f"{row['spine_gain_interval_95'][1]:+.2f})"
                    for mode in MODES
                    for row in rows
                    if row["budget"] == budget and row["mode"] == mode
                ),
            ]
            for budget in sorted({row["budget"] for row in rows})
        ),
    )


def tree(store: Store, kind: str) -> str:
    """Greedy, budget 32."""
    return f"{_rows(store, kind, 'replay')[f'DDTREE budget 32, K {TOPK}', 'greedy']['accept_length']:.2f}"


def chain(store: Store, kind: str) -> str:
    """Greedy, DFLASH."""
    return f"{_rows(store, kind, 'replay')['DFLASH', 'greedy']['accept_length']:.2f}"


def seconds(store: Store, kind: str) -> str:
    """How long the benchmark took."""
    return f"{store[f'accept-{kind}']['config']['seconds']}"


_FIGURES = {"": lengths, "-spine": spine, "-tree": tree, "-chain": chain, "-seconds": seconds}
for _kind in KINDS:
    for _suffix, _render in _FIGURES.items():
        figure(f"accept.{_kind}{_suffix}")(partial(_render, kind=_kind))

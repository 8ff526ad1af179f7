# SPDX-License-Identifier: Apache-2.0
"""Figures of docs/trained-pair.md: tokens a step by algorithm and tree."""

from __future__ import annotations

from typing import Any

from benchmark.receipts.figures.registry import figure, table
from benchmark.receipts.store import Store

MLA = "accept-mla"
TOPK = 8
MODES = ("greedy", "temperature 1")


def _rows(store: Store, how: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows by name and mode."""
    return {(row["name"], row["mode"]): row for row in store[MLA]["results"] if row["how"] == how}


def _cell(row: dict[str, Any]) -> str:
    if "ahead_interval_95" not in row:
        return f"{row['accept_length']:.2f}"
    low, high = row["ahead_interval_95"]
    return f"{row['accept_length']:.2f} ({low:+.2f} to {high:+.2f})"


@figure("accept.mla")
def lengths(store: Store) -> str:
    """Chain, trees and NGRAM down, modes across."""
    replayed, served = _rows(store, "replay"), _rows(store, "server")
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


@figure("accept.mla-spine")
def spine(store: Store) -> str:
    """What the spine gains, greedy, by budget."""
    replayed = _rows(store, "replay")
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


@figure("accept.mla-tree")
def tree(store: Store) -> str:
    return f"{_rows(store, 'replay')[f'DDTREE budget 32, K {TOPK}', 'greedy']['accept_length']:.2f}"


@figure("accept.mla-chain")
def chain(store: Store) -> str:
    return f"{_rows(store, 'replay')['DFLASH', 'greedy']['accept_length']:.2f}"

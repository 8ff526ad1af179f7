# SPDX-License-Identifier: Apache-2.0
"""Names the functions that make figures, and what several of them need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmark.receipts.store import Store

Figure = Callable[[Store], str]
FIGURES: dict[str, Figure] = {}


def figure(name: str) -> Callable[[Figure], Figure]:
    """Registers a function under the name that pages use, such as ``kernel.rivals``."""

    def register(function: Figure) -> Figure:
        if name in FIGURES:
            raise ValueError(f"there are two figures named {name}")
        FIGURES[name] = function
        return function

    return register


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
        .replace("| --- ", "|---")
        .replace("|--- |", "|---|")
    )


def times(ratio: float) -> str:
    """``2.06x``, ``55.1x``."""
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"

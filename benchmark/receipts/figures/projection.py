# SPDX-License-Identifier: Apache-2.0
"""The projection of docs/kernel.md for cards that nobody has measured: arithmetic on what was measured on an H200."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from benchmark.receipts.figures.registry import figure, table
from benchmark.receipts.store import Store

STEP_KEYS, TILE_ROWS, ROW_BYTES = 16, 64, 1152
STEP_FLOP = 2 * TILE_ROWS * STEP_KEYS * (576 + 512)
# Of the kernel on an H200, from profiler samples and variants; see docs/kernel.md.
CHAIN_CLOCKS, FIXED_US = 1_700, 12.0
HEADS = 8


@dataclass(frozen=True)
class Card:
    """Published figures: multiprocessors, bytes/s, dense bf16 FLOP/s with fp32 sums, boost clock in Hz."""

    name: str
    sms: int
    bandwidth: float
    flops: float
    clock: float

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.sms} SMs, {self.bandwidth / 1e12:.2f} TB/s, {self.flops / 1e12:.0f} TFLOPS, "
            f"{self.clock / 1e9:.1f} GHz)"
        )

    def microseconds(self, nodes: int, length: int) -> float:
        tiles = ceil(nodes * HEADS / TILE_ROWS)
        steps = ceil(length / STEP_KEYS) * tiles / self.sms
        step = max(
            STEP_KEYS * ROW_BYTES / tiles / (self.bandwidth / self.sms),
            STEP_FLOP / (self.flops / self.sms),
            CHAIN_CLOCKS / self.clock,
        )
        return 1e6 * steps * step + FIXED_US


CARDS = (
    Card("RTX PRO 6000", 188, 1.79e12, 504e12, 2.6e9),
    Card("RTX 5090", 170, 1.79e12, 210e12, 2.4e9),
)
CASES = ((8, 23_000), (8, 91_000), (64, 91_000))


@figure("kernel.projection")
def projection(_: Store) -> str:
    return table(
        ["", *map(str, CARDS)],
        (
            [f"N = {nodes}, {length:,} tokens", *(f"{card.microseconds(nodes, length):.0f} µs" for card in CARDS)]
            for nodes, length in CASES
        ),
    )

# SPDX-License-Identifier: Apache-2.0
"""Figures of docs/kernel-gqa.md: the GQA kernel alone, and the others beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmark.receipts.figures.registry import figure, table
from benchmark.receipts.store import Store

BF16 = "gqa_tree_verify-bf16-NVIDIA-H200"
RIVALS = "gqa_tree_verify-rivals-NVIDIA-H200"
FP8 = "gqa_tree_verify-fp8-NVIDIA-H200"
TESTS = {"kernel": "test_gqa_tree_verify-NVIDIA-H200", "backend": "test_backend_gqa-NVIDIA-H200"}
Case = dict[str, Any]


def _cases(store: Store, name: str, kind: str, heads: int) -> dict[tuple[int, int, int], Case]:
    """A receipt's cases of one kind by batch, nodes and length, in the receipt's order."""
    rows = (row for row in store[name]["results"] if (row["kind"], row["heads"]) == (kind, heads))
    return {(row["batch"], row["nodes"], row["length"]): row for row in rows}


def _us(case: Case, kernel: str = "ours") -> float:
    return float(case["kernels"][kernel]["median_us"])


def _against_floor(case: Case) -> list[str]:
    return [f"{_us(case):.1f}", f"{_us(case) / case['floor_us']:.2f}"]


def _over_ours(case: Case | None, kernel: str) -> str:
    return "" if case is None or kernel not in case["kernels"] else f"{_us(case, kernel) / _us(case):.2f}"


def _order(place: tuple[int, int, int]) -> tuple[int, int, int]:
    batch, nodes, length = place
    return batch, length, nodes


@figure("gqa.bf16")
def bf16(store: Store) -> str:
    few, many = (_cases(store, BF16, "tree", heads) for heads in (32, 64))
    head = ["batch", "N", "context", "32 heads, µs", "times the floor", "64 heads, µs", "times the floor"]
    return table(
        head,
        (
            [place[0], place[1], f"{place[2]:,}", *_against_floor(few[place]), *_against_floor(many[place])]
            for place in sorted(many, key=_order)
        ),
    )


@figure("gqa.rivals")
def rivals(store: Store) -> str:
    trees, blocks = (_cases(store, RIVALS, kind, 64) for kind in ("tree", "block"))
    return table(
        ["batch", "N", "context", "FlashInfer, tree", "FlashInfer, block", "Triton, tree"],
        (
            [
                place[0],
                place[1],
                f"{place[2]:,}",
                _over_ours(trees[place], "flashinfer"),
                _over_ours(blocks.get(place), "flashinfer"),
                _over_ours(trees[place], "triton"),
            ]
            for place in sorted(trees, key=_order)
        ),
    )


@figure("gqa.fp8")
def fp8(store: Store) -> str:
    ours, wide = (_cases(store, name, "tree", 64) for name in (FP8, BF16))
    return table(
        ["N", "context", "µs", "times the floor", "of the bf16 time"],
        (
            [place[1], f"{place[2]:,}", *_against_floor(ours[place]), f"{_us(ours[place]) / _us(wide[place]):.2f}"]
            for place in sorted(ours, key=_order)
            if place[0] == 1
        ),
    )


@figure("gqa.copy")
def copy(store: Store) -> str:
    return f"{store[BF16]['config']['copy_bytes_per_s'] / 1e12:.2f} TB/s"


@figure("gqa.mma")
def mma(store: Store) -> str:
    return f"{store[BF16]['config']['mma_sync_flop_per_s'] / 1e12:.0f} TFLOP/s"


def _passed(store: Store, which: str) -> str:
    outcomes = store[TESTS[which]]["config"]["outcomes"]
    return f"{outcomes['passed']} of {sum(outcomes.values())}"


def _error(store: Store, name: str) -> str:
    return f"{max(row['error'] for row in store[name]['results']):.1e}".replace("e-0", "e-")


_MADE: dict[str, Callable[[Store], str]] = {
    "gqa.kernel-tests": partial(_passed, which="kernel"),
    "gqa.backend-tests": partial(_passed, which="backend"),
    "gqa.error-bf16": partial(_error, name=BF16),
    "gqa.error-fp8": partial(_error, name=FP8),
}
for _name, _make in _MADE.items():
    figure(_name)(_make)

# SPDX-License-Identifier: Apache-2.0
"""Figures of docs/kernel.md and of the README: the kernels alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmark.receipts.figures.registry import figure, table, times
from benchmark.receipts.store import Store

RIVALS = "mla_tree_verify-rivals-NVIDIA-H200"
TESTS = "test_mla_tree_verify-NVIDIA-H200"
OPS = "ddtree_ops-NVIDIA-H200"
_OTHERS = {"flashinfer_fa2": "FlashInfer fa2", "flashinfer_fa3": "FlashInfer fa3", "triton": "SGLang Triton"}


def _case(store: Store, batch: int, nodes: int, length: int) -> dict[str, Any]:
    (case,) = (
        row for row in store[RIVALS]["results"] if (row["batch"], row["nodes"], row["length"]) == (batch, nodes, length)
    )
    return case


def _ours(case: dict[str, Any]) -> float:
    return float(case["kernels"]["ours"]["median_us"])


def _faster(case: dict[str, Any], other: str) -> str:
    median = case["kernels"].get(other, {}).get("median_us")
    return "not measured" if median is None else times(median / _ours(case))


@figure("kernel.rivals")
def rivals(store: Store) -> str:
    head = ["batch", "N", "context", "µs", "times the floor", *_OTHERS.values()]
    return table(
        head,
        (
            [
                case["batch"],
                case["nodes"],
                f"{case['length']:,}",
                f"{_ours(case):.1f}",
                f"{_ours(case) / case['floor_us']:.2f}",
                *(_faster(case, other) for other in _OTHERS),
            ]
            for case in store[RIVALS]["results"]
        ),
    )


def _of(make: Callable[[Store], str], name: str) -> None:
    figure(name)(make)


_of(lambda store: f"{store[RIVALS]['config']['copy_bytes_per_s'] / 1e12:.2f} TB/s", "kernel.copy")
_of(lambda store: f"{store[RIVALS]['config']['mma_sync_flop_per_s'] / 1e12:.0f} TFLOP/s", "kernel.mma")
_of(lambda store: f"{_ours(_case(store, 1, 8, 91000)):.1f} µs", "kernel.n8-91k")
_of(lambda store: f"{_ratio(store, 'triton'):.0f} times", "kernel.n8-91k-triton")
_of(lambda store: f"{_ratio(store, 'flashinfer_fa2'):.2f} times", "kernel.n8-91k-fa2")
_of(lambda store: f"{_case(store, 1, 1, 23000)['floor_us']:.1f} µs", "kernel.floor-23k")


def _ratio(store: Store, other: str) -> float:
    case = _case(store, 1, 8, 91000)
    return float(case["kernels"][other]["median_us"]) / _ours(case)


@figure("kernel.floor-batch1")
def floor_batch1(store: Store) -> str:
    return _span(store, 1, (23000, 91000))


@figure("kernel.floor-batch16")
def floor_batch16(store: Store) -> str:
    return _span(store, 16, (23000,))


def _span(store: Store, batch: int, lengths: tuple[int, ...]) -> str:
    """The least and the most times the floor, of trees (more than one node)."""
    shares = [
        _ours(case) / case["floor_us"]
        for case in store[RIVALS]["results"]
        if case["batch"] == batch and case["length"] in lengths and case["nodes"] > 1
    ]
    return f"{min(shares):.1f} to {max(shares):.1f}"


@figure("kernel.short")
def short(store: Store) -> str:
    return " and ".join(f"{_ours(_case(store, 1, nodes, 5700)):.0f}" for nodes in (8, 16))


@figure("kernel.tests")
def tests(store: Store) -> str:
    outcomes = store[TESTS]["config"]["outcomes"]
    return f"{outcomes['passed']} of {sum(outcomes.values())}"


@figure("kernel.error")
def error(store: Store) -> str:
    errors = [case["kernels"]["ours"]["error"] for case in store[RIVALS]["results"]]
    return f"{min(errors):.1e} to {max(errors):.1e}".replace("e-0", "e-")


@figure("ops.step")
def step(store: Store) -> str:
    (case,) = (row for row in store[OPS]["results"] if (row["batch"], row["nodes"]) == (1, 33))
    return f"{case['step']['median_us']:.1f} µs"

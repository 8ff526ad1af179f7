# SPDX-License-Identifier: Apache-2.0
"""Figures of the GPU server tests, from the receipts that ``pytest test/gpu --receipts`` writes."""

from __future__ import annotations

from typing import Any

from benchmark.receipts.figures.registry import figure
from benchmark.receipts.store import Store


def _figures(store: Store, name: str) -> list[dict[str, Any]]:
    return [result["figures"] for result in store[f"test_server_{name}-NVIDIA-H200"]["results"]]


def _passed(store: Store, name: str) -> str:
    outcomes = store[f"test_server_{name}-NVIDIA-H200"]["config"]["outcomes"]
    return f"{outcomes.get('passed', 0)} of {sum(outcomes.values())} passed"


@figure("server.graphs")
def graphs(store: Store) -> str:
    steps = sum(found.get("steps_replayed", 0) for found in _figures(store, "graphs"))
    eager = sum(found.get("steps_eager", 0) for found in _figures(store, "graphs"))
    return f"{_passed(store, 'graphs')}; {steps:,} steps counted, {eager} without a graph"


@figure("server.soak")
def soak(store: Store) -> str:
    (found,) = _figures(store, "soak")
    return f"{found['steps_replayed']:,} steps, {found['steps_eager']} without a graph"


def _agreement(store: Store, algorithm: str) -> str:
    results = store["test_server_agreement-NVIDIA-H200"]["results"]
    (found,) = (result["figures"] for result in results if result["test"].endswith(f"[{algorithm}]"))
    return f"{found['share']:.2%} of {found['compared']:,} choices"


@figure("server.agreement")
def agreement(store: Store) -> str:
    return _agreement(store, "DDTREE")


@figure("server.agreement-dflash")
def agreement_dflash(store: Store) -> str:
    return _agreement(store, "DFLASH")


@figure("server.error")
def error(store: Store) -> str:
    """Relative errors against attention in float64, over all rows of all steps."""
    (found,) = _figures(store, "error")
    sides = found["reference"]
    ours, triton, least = (1e3 * sides[side]["error"] for side in ("ours", "delegate", "rounded"))
    return (
        f"{found['steps']:,} steps, {sides['rows']:,} rows: ours {ours:.3f}e-3, Triton's {triton:.3f}e-3, "
        f"of rounding to bf16 alone {least:.3f}e-3"
    )


@figure("server.sync")
def sync(store: Store) -> str:
    return _passed(store, "step_sync")


@figure("server.turns")
def turns(store: Store) -> str:
    return _passed(store, "turns")


@figure("server.agreement-gap")
def agreement_gap(store: Store) -> str:
    return f"{max(gap for found in _figures(store, 'agreement') for gap in found.get('gaps', ())):.3f}"


@figure("server.together")
def together(store: Store) -> str:
    found = next(found for found in _figures(store, "agreement") if "answers" in found)
    return f"{found['equal_to_the_last_token']} of {found['answers']}"


@figure("server.switch")
def switch(store: Store) -> str:
    found = _figures(store, "switch")
    switches = sum(f.get("switches", 0) for f in found)
    rows = sum(f["validation"]["rows"] for f in found if "validation" in f)
    worst = max(f["validation"]["max_ulp"] for f in found if "validation" in f)
    return (
        f"{_passed(store, 'switch')}; {switches} switches under load; {rows:,} rows compared, none further than "
        f"{worst:g} units in the last place"
    )

# SPDX-License-Identifier: Apache-2.0
"""Plots of a comparison. ``python -m benchmark.serve.plots RECEIPT.json`` draws one again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmark.serve.report import Result, server_name

_BACKENDS = {"triton": ("SGLang triton", "tab:gray"), "ddtree_sm120": ("ddtree_sm120", "tab:blue")}

# Below it a logarithmic axis would have no tick to read.
LEAST_SPREAD = 8


def draw(receipt: dict[str, Any], stem: Path) -> None:
    """Write STEM.png if a step was measured, and STEM-profile.png if the receipt has profiles."""
    gpu, results = str(receipt["host"]["gpu"]), receipt["results"]
    if any("median_ms" in result for result in results):
        _plot_steps(results, gpu, stem.with_suffix(".png"))
    if any("profile" in result for result in results):
        _plot_profiles(results, gpu, stem.with_name(f"{stem.name}-profile.png"))


def _plot_steps(results: list[Result], gpu: str, path: Path) -> None:
    """Milliseconds a step against context, one panel an algorithm, one line a server; those that failed are named."""
    algorithms = list(dict.fromkeys(r["algorithm"] for r in results if "median_ms" in r))
    size = (4.6 * len(algorithms) + 1.4, 4.0)
    figure, axes = plt.subplots(1, len(algorithms), figsize=size, squeeze=False, sharey=True)
    for axis, algorithm in zip(axes.flat, algorithms, strict=True):
        mine = [r for r in results if r["algorithm"] == algorithm and "median_ms" in r]
        for name in dict.fromkeys(map(server_name, mine)):
            rows = sorted((r for r in mine if server_name(r) == name), key=lambda r: r["context"])
            label, colour = _BACKENDS.get(rows[0]["backend"], (rows[0]["backend"], "tab:green"))
            beside = f", draft on {rows[0]['draft_backend']}" + _turns(rows[0])
            x, y = [r["context"] for r in rows], [r["median_ms"] for r in rows]
            style = "-" if rows[0]["draft_backend"] == _fastest_draft(mine, rows[0]["backend"]) else ":"
            # A filled dot for the turns of several steps: the same backend may have two lines.
            fill = "white" if _one_of_two_ways(rows[0]) and not rows[0].get("turn_ms") else colour
            axis.plot(x, y, style, marker="o", markerfacecolor=fill, color=colour, label=f"{label}{beside}")
            if style == "-":
                for at, value in zip(x, y, strict=True):
                    axis.annotate(f"{value:.2f}", (at, value), xytext=(0, 6), textcoords="offset points", fontsize=8)
        axis.set_xscale("log")
        if _spread(results) > LEAST_SPREAD:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        ticks = sorted({r["context"] for r in mine})
        axis.set_xticks(ticks, [f"{t:,}" for t in ticks], minor=False)
        axis.xaxis.minorticks_off()
        axis.set_xlabel("context (tokens)")
        width = next((r["width"] for r in mine), "")
        axis.set_title(f"{algorithm}, {'block' if algorithm == 'DFLASH' else 'budget'} {width}", fontsize=10)
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize=8)
        axis.margins(x=0.12, y=0.15)
    axes[0][0].set_ylabel("ms a verify step (median)")
    figure.suptitle(f"Verify step in the server, batch 1, {gpu}", fontsize=11)
    figure.supxlabel(_failed(results), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _turns(row: Result) -> str:
    if not _one_of_two_ways(row):
        return ""
    return f", turns of {row['turn_ms']:g} ms" if row.get("turn_ms") else ", one step a turn"


def _one_of_two_ways(row: Result) -> bool:
    """Whether its backend is measured with one step and with several steps a turn."""
    return row["backend"] == "ddtree_sm120"


def _failed(results: list[Result]) -> str:
    """The servers without any time, so that a missing line does not read as one that was not asked for."""
    measured = {server_name(r) for r in results if "median_ms" in r}
    names = [name for name in dict.fromkeys(map(server_name, results)) if name not in measured]
    return "\n".join(f"failed, no times: {name}" for name in names)


def _spread(rows: list[Result]) -> float:
    times = [r["median_ms"] for r in rows if "median_ms" in r]
    return max(times) / min(times) if times else 1.0


def _fastest_draft(rows: list[Result], backend: str) -> str:
    longest = max(r["context"] for r in rows)
    mine = [r for r in rows if r["backend"] == backend and r["context"] == longest]
    return min(mine, key=lambda r: r["median_ms"])["draft_backend"] if mine else ""


def _plot_profiles(results: list[Result], gpu: str, path: Path) -> None:
    """Where a step goes: one stacked bar a server and context."""
    profiled = [r for r in results if "profile" in r and r["backend"] != "triton"]
    if not profiled:
        return
    kinds = sorted(
        {kind for r in profiled for kind in r["profile"]["kinds"]},
        key=lambda k: -max(r["profile"]["kinds"].get(k, 0.0) for r in profiled),
    )
    figure, axis = plt.subplots(figsize=(9, 1.2 + 0.55 * len(profiled)))
    left = [0.0] * len(profiled)
    colours = plt.get_cmap("tab20").colors
    for i, kind in enumerate(kinds):
        widths = [r["profile"]["kinds"].get(kind, 0.0) for r in profiled]
        axis.barh(range(len(profiled)), widths, left=left, label=kind, color=colours[i % len(colours)])
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.set_yticks(range(len(profiled)), [f"{server_name(r)}\n{r['context']:,} tokens" for r in profiled], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("µs a step, profiler on")
    axis.set_title(f"Where a verify step goes, batch 1, {gpu}", fontsize=10)
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[1]).with_suffix(""))

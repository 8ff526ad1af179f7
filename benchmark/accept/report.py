# SPDX-License-Identifier: Apache-2.0
"""A table for the terminal and the docs, and a picture of accept length against budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Rows = list[dict[str, Any]]


def table(rows: Rows) -> str:
    """Markdown: the rows without those of bare trees, whose difference stands in the last column."""
    lines = [
        "| | mode | from | tokens a step | 95 % | steps | ahead of DFLASH | gain by the spine |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.get("spine") is False:
            continue
        cells = [
            row["name"],
            row["mode"],
            row["how"],
            f"{row['accept_length']:.2f}",
            _range(row["interval_95"]),
            str(row["steps"]),
            _signed(row, "ahead_of_chain", "ahead_interval_95"),
            _signed(row, "spine_gain", "spine_gain_interval_95"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(rows: Rows, path: Path, kind: str) -> None:
    """Accept length against budget, a line for each K with its 95 % interval; the chain is level."""
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    figure, axes = plt.subplots(1, len(modes), figsize=(5.5 * len(modes), 4), sharey=True, squeeze=False)
    for axis, mode in zip(axes[0], modes, strict=True):
        here = [row for row in rows if row["mode"] == mode and row["how"] == "replay"]
        chain = next(row for row in here if row["name"] == "DFLASH")
        axis.axhline(chain["accept_length"], color="grey", label="DFLASH (chain)")
        axis.axhspan(*chain["interval_95"], color="grey", alpha=0.15)
        for topk in sorted({row["topk"] for row in here if "topk" in row}):
            line = [row for row in here if row.get("topk") == topk and row["spine"]]
            budgets = [row["budget"] for row in line]
            (drawn,) = axis.plot(
                budgets, [row["accept_length"] for row in line], marker="o", label=f"DDTREE, K = {topk}"
            )
            low, high = zip(*(row["interval_95"] for row in line), strict=True)
            axis.fill_between(budgets, low, high, color=drawn.get_color(), alpha=0.12)
        axis.set_xscale("log", base=2)
        axis.set_xticks(budgets, budgets)
        axis.set_title(mode)
        axis.set_xlabel("budget (nodes besides the root)")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("tokens a step")
    axes[0][0].legend()
    figure.suptitle(f"Accept length of the trained {kind.upper()} pair; bands: 95 %, bootstrap over prompts")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _range(ends: list[float]) -> str:
    return f"{ends[0]:.2f} to {ends[1]:.2f}"


def _signed(row: dict[str, Any], key: str, interval: str) -> str:
    if key not in row:
        return ""
    low, high = row[interval]
    return f"{row[key]:+.2f} ({low:+.2f} to {high:+.2f})"

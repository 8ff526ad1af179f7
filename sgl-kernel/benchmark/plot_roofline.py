# SPDX-License-Identifier: Apache-2.0
"""Draws a receipt of bench_mla_tree_verify: each case under the roof that the same run measured.

python sgl-kernel/benchmark/plot_roofline.py RECEIPT.json [OUT.png]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

MARKERS = {1024: "v", 5700: "^", 23000: "o", 91000: "s", 131072: "D"}
RIVALS = {"flashinfer_fa2": ("FlashInfer fa2", "tab:orange"), "flashinfer_fa3": ("FlashInfer fa3", "tab:red"),
          "triton": ("SGLang Triton", "tab:gray")}  # fmt: skip


def _draw(axis: Any, receipt: dict[str, Any], batch: int, heads: int) -> None:
    copy, peak = receipt["config"]["copy_bytes_per_s"], receipt["config"]["mma_sync_flop_per_s"]
    cases = [r for r in receipt["results"] if r["batch"] == batch and r["heads"] == heads]
    intensities = [r["flop"] / r["bytes"] for r in cases]
    x = np.geomspace(min(intensities) / 2, max(max(intensities) * 2, 2 * peak / copy), 200)
    axis.loglog(x, np.minimum(x * copy, peak) / 1e12, color="black", linewidth=1.5)
    for name, (_, colour) in RIVALS.items():
        points = [(r["flop"] / r["bytes"], r["flop"] / r["kernels"][name]["median_us"] / 1e6)
                  for r in cases if "median_us" in r["kernels"].get(name, {})]  # fmt: skip
        if points:
            axis.scatter(*zip(*points), marker="x", s=22, color=colour, linewidths=1)
    for r, intensity in zip(cases, intensities):
        achieved = r["flop"] / r["kernels"]["ours"]["median_us"] / 1e6
        marker = MARKERS.get(r["length"], "o")
        axis.scatter(intensity, achieved, marker=marker, s=36, color="tab:blue", edgecolors="white", linewidths=0.5)
    for nodes in sorted({r["nodes"] for r in cases}):
        highest = max(r["flop"] / r["kernels"]["ours"]["median_us"] / 1e6 for r in cases if r["nodes"] == nodes)
        where = next(i for r, i in zip(cases, intensities) if r["nodes"] == nodes)
        axis.annotate(f"N={nodes}", (where, highest), xytext=(3, 5), textcoords="offset points", fontsize=7)
    axis.set_title(f"batch {batch}, {heads} heads", fontsize=9)
    axis.grid(True, which="major", alpha=0.3)


def plot(receipt: dict[str, Any], path: Path) -> None:
    """Writes one panel for each (heads, batch) of the receipt to `path`."""
    heads = sorted({r["heads"] for r in receipt["results"]})
    batches = sorted({r["batch"] for r in receipt["results"]})
    figure, axes = plt.subplots(
        len(heads), len(batches), figsize=(3.4 * len(batches) + 1, 3.0 * len(heads) + 1.2), squeeze=False, sharey=True
    )
    for axis, (h, b) in zip(axes.flat, ((h, b) for h in heads for b in batches)):
        if any(r["batch"] == b and r["heads"] == h for r in receipt["results"]):
            _draw(axis, receipt, b, h)
        else:
            axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("TFLOP/s")
    for axis in axes[-1]:
        axis.set_xlabel("FLOP per byte of KV")
    config = receipt["config"]
    handles = [plt.Line2D([], [], color="black", label="roof: measured copy, measured mma.sync")]
    lengths = sorted({r["length"] for r in receipt["results"]})
    handles += [
        plt.Line2D([], [], marker=MARKERS.get(n, "o"), color="tab:blue", linestyle="", label=f"ours, context {n:,}")
        for n in lengths
    ]
    drawn = {name for r in receipt["results"] for name, timed in r["kernels"].items() if "median_us" in timed}
    handles += [
        plt.Line2D([], [], marker="x", color=colour, linestyle="", label=label)
        for name, (label, colour) in RIVALS.items()
        if name in drawn
    ]
    figure.legend(handles=handles, loc="lower center", ncol=4, fontsize=8)
    figure.suptitle(
        f"mla_tree_verify on {receipt['host']['gpu']}: copy {config['copy_bytes_per_s'] / 1e12:.2f} TB/s, "
        f"mma.sync bf16 {config['mma_sync_flop_per_s'] / 1e12:.0f} TFLOP/s", fontsize=10
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0.11 if len(heads) == 1 else 0.07, 1, 0.97))
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    plot(json.loads(source.read_text()), Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".png"))

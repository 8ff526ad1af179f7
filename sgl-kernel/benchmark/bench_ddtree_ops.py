# SPDX-License-Identifier: Apache-2.0
"""Time of one step's tree_build + tree_accept + kv_commit, in one CUDA graph, on one card.

    python sgl-kernel/benchmark/bench_ddtree_ops.py [--out DIR]

DeepSeek-like: 61 layers of MLA rows (576 bf16), a draft block of 16 (15 drafted positions), 8 candidates. The target agrees
with a random child of every node, so that paths are as long as the tree allows and most rows really move; the mean path is
in the receipt. Each reading is a graph of one step a pool set, the sets in turn, so that every step finds its rows cold.
Before it is timed, a step's rows are compared with indexing by torch. Fails when a limit is passed.

A result of the receipt: batch, nodes, mean_path, moved_bytes, and for `step`, `build`, `accept`, `commit`: median_us,
readings_us; limit_us where there is one.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent.parent / "benchmark")]

from receipt import make_receipt, write_receipt
from roofs import time_graph
from sgl_kernel_ddtree import ensure_loaded, kv_commit, tree_accept, tree_build

LAYERS = 61
ROW_BYTES = 576 * 2
DEPTH = 15
WIDTH = 8
VOCAB = 4096
LIMITS_US = {(1, 33): 40.0, (48, 33): 150.0}
CASES = [(1, 33), (48, 33), (1, 65), (48, 65), (1, 257), (48, 257)]
DEVICE = torch.device("cuda")


@dataclass
class Step:
    """Buffers of one step; `pool` has one tensor a layer."""

    batch: int
    nodes: int
    pool: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        def new(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=DEVICE)

        logits = torch.randn(self.batch, DEPTH, VOCAB, device=DEVICE) * 3
        self.logprobs, self.ids = logits.log_softmax(-1).topk(WIDTH, dim=-1)
        self.roots = torch.zeros(self.batch, dtype=torch.int64, device=DEVICE)
        self.prefix = torch.full((self.batch,), 1000, dtype=torch.int64, device=DEVICE)
        shape = (self.batch, self.nodes)
        self.tree = [
            new(*shape, dtype=torch.int64),
            new(*shape),
            new(*shape),
            new(*shape, dtype=torch.int64),
            new(*shape, -(-self.nodes // 32)),
            new(*shape),
            new(*shape),
            new(self.batch),
        ]
        self.path = [
            new(self.batch, DEPTH + 1),
            new(self.batch),
            new(self.batch, dtype=torch.int64),
            new(self.batch, DEPTH + 1, dtype=torch.int64),
            new(self.batch, dtype=torch.int64),
        ]
        rows = self.batch * self.nodes
        self.slots = torch.randperm(rows, device=DEVICE).view(self.batch, self.nodes)
        self.pool = [torch.randint(0, 256, (rows, ROW_BYTES), dtype=torch.uint8, device=DEVICE) for _ in range(LAYERS)]
        self.addresses = torch.tensor([layer.data_ptr() for layer in self.pool], device=DEVICE)
        self.row_bytes = torch.full((LAYERS,), ROW_BYTES, dtype=torch.int64, device=DEVICE)
        self.build()
        self.target = self._choices()
        self.accept()

    def _choices(self) -> torch.Tensor:
        """At each node with children, the token of a random one."""
        tokens, parents = self.tree[0].cpu(), self.tree[1].cpu()
        target = torch.full((self.batch, self.nodes), -1, dtype=torch.int64)
        for b in range(self.batch):
            for child in torch.randperm(self.nodes).tolist():
                if parents[b, child] >= 0:
                    target[b, parents[b, child]] = tokens[b, child]
        return target.to(DEVICE)

    def build(self) -> None:
        tree_build(self.ids, self.logprobs, self.roots, self.prefix, *self.tree, True)

    def accept(self) -> None:
        tree_accept(self.tree[0], self.tree[1], self.target, self.prefix, *self.path)

    def commit(self) -> None:
        kv_commit(self.addresses, self.row_bytes, self.slots, self.path[0], self.path[1])

    def __call__(self) -> None:
        self.build()
        self.accept()
        self.commit()

    def check(self) -> None:
        wanted = [layer.clone() for layer in self.pool]
        nodes, lens = self.path[0].cpu(), self.path[1].tolist()
        for b, length in enumerate(lens):
            steps = nodes[b, :length].long().to(DEVICE)
            for layer in wanted:
                layer[self.slots[b, :length]] = layer[self.slots[b, steps]]
        self()
        torch.cuda.synchronize()
        for layer, rows in zip(self.pool, wanted):
            if not torch.equal(layer, rows):
                raise SystemExit("kv_commit moved wrong rows; not timed")

    def moved_rows(self) -> int:
        steps = torch.arange(DEPTH + 1, device=DEVICE)
        return int(((self.path[0] > steps) & (steps < self.path[1][:, None])).sum())


def measure(batch: int, nodes: int) -> dict[str, Any]:
    one_pool = batch * nodes * ROW_BYTES * LAYERS
    l2 = torch.cuda.get_device_properties(DEVICE).L2_cache_size
    sets = max(2, min(16, -(-3 * l2 // one_pool)))
    steps = [Step(batch, nodes) for _ in range(sets)]
    steps[0].check()
    result: dict[str, Any] = {
        "batch": batch,
        "nodes": nodes,
        "mean_path": float(steps[0].path[1].float().mean()),
        "moved_bytes": 2 * steps[0].moved_rows() * ROW_BYTES * LAYERS,
    }
    for name, calls in (
        ("step", steps),
        ("build", [step.build for step in steps]),
        ("accept", [step.accept for step in steps]),
        ("commit", [step.commit for step in steps]),
    ):
        timing = time_graph(calls)
        result[name] = {"median_us": timing.median_us, "readings_us": timing.readings_us}
    limit = LIMITS_US.get((batch, nodes))
    if limit is not None:
        result["limit_us"] = limit
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent.parent / "benchmark" / "results", help="folder of the receipt")
    args = parser.parse_args()
    ensure_loaded(DEVICE)
    torch.manual_seed(0)
    results, missed = [], []
    for batch, nodes in CASES:
        result = measure(batch, nodes)
        results.append(result)
        parts = "  ".join(f"{name} {result[name]['median_us']:6.1f}" for name in ("build", "accept", "commit"))
        print(
            f"B={batch:<3} N={nodes:<4} step {result['step']['median_us']:6.1f} us  ({parts})  "
            f"path {result['mean_path']:.1f}, {result['moved_bytes'] / 1e6:.1f} MB"
        )
        if result["step"]["median_us"] > result.get("limit_us", float("inf")):
            missed.append((batch, nodes))
    sources = [p for op in ("tree_build", "tree_accept", "kv_commit") for p in (HERE.parent / "csrc" / op).iterdir()]
    config = {"layers": LAYERS, "row_bytes": ROW_BYTES, "depth": DEPTH, "candidates": WIDTH, "missed": missed}
    receipt = make_receipt("bench_ddtree_ops", results, config=config, sources=[*sources, Path(__file__)])
    write_receipt(args.out / "bench_ddtree_ops.json", receipt)
    if missed:
        raise SystemExit(f"over the limit: {missed}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Time of the launch that prepares a step for ``ddtree_sm120``, on one card.

    python -m benchmark.bench_step_metadata [--out DIR]

Random page numbers; lengths all equal to the context. A reading is the time of a CUDA graph of 20 launches over 20, so
launches follow each other and find in the L2 what fits there. Each result is compared with indexing by torch first.
Fails when a limit is passed.

A result of the receipt: batch, nodes, context, page_size, layout, median_us, readings_us, host_us (median time that the
call takes on the host), limit_us where there is one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from sglang.srt.layers.attention.ddtree_sm120.step_metadata import MaskLayout, StepBuffers, write_step_metadata

from benchmark.receipt import REPO, make_receipt, write_receipt

KERNEL = REPO / "python/sglang/srt/layers/attention/ddtree_sm120/step_metadata.py"
# A row of SGLang's table for 131,072 tokens and a window of 33: no multiple of any vector width.
ROW = 131_072 + 4 + 33
LAUNCHES, READINGS = 20, 15
LIMIT_US = 10.0  # at batch 48, for contexts up to 23,000 tokens a request
CASES = [
    (batch, nodes, context, page_size, layout)
    for batch in (1, 8, 48)
    for context in (5_700, 23_000, 91_000)
    for page_size in (1, 64)
    for nodes, layout in ((33, MaskLayout.WORDS), (8, MaskLayout.CHAIN), (12, MaskLayout.FULL_MASK))
]


def measure(batch: int, nodes: int, context: int, page_size: int, layout: MaskLayout) -> dict[str, Any]:
    max_pages = -(-ROW // page_size)
    pages = torch.randint(0, 2**31 // page_size, (batch, max_pages), device="cuda")
    offsets = torch.arange(page_size, device="cuda")
    table = (pages[:, :, None] * page_size + offsets).flatten(1)[:, :ROW].to(torch.int32).contiguous()
    step = StepBuffers(batch, nodes, max_pages, "cuda").step(batch, nodes)
    masks = {
        MaskLayout.CHAIN: None,
        MaskLayout.WORDS: torch.randint(0, 2**31 - 1, step.mask_words.shape, dtype=torch.int32, device="cuda"),
        MaskLayout.FULL_MASK: torch.ones(batch * nodes * (context + nodes), dtype=torch.bool, device="cuda")
        if layout == MaskLayout.FULL_MASK
        else None,
    }
    arguments = {
        "req_to_token": table,
        "req_pool_indices": torch.randperm(batch, device="cuda"),
        "seq_lens": torch.full((batch,), context, device="cuda"),
        "lens_count_window": False,
        "page_size": page_size,
        "layout": layout,
        "mask": masks[layout],
    }
    write_step_metadata(step, **arguments)
    used = -(-(context + nodes) // page_size)
    if not torch.equal(step.page_table[:, :used], pages[arguments["req_pool_indices"], :used].to(torch.int32)):
        raise SystemExit(f"wrong page table: batch {batch}, context {context}, page size {page_size}")

    host = []
    for _ in range(READINGS):
        begun = time.perf_counter()
        write_step_metadata(step, **arguments)
        host.append((time.perf_counter() - begun) * 1e6)
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            write_step_metadata(step, **arguments)
    readings = []
    for _ in range(READINGS):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        graph.replay()
        events[1].record()
        torch.cuda.synchronize()
        readings.append(events[0].elapsed_time(events[1]) * 1e3 / LAUNCHES)
    result = {
        "batch": batch,
        "nodes": nodes,
        "context": context,
        "page_size": page_size,
        "layout": layout.name,
        "median_us": statistics.median(readings),
        "readings_us": readings,
        "host_us": statistics.median(host),
    }
    return result | ({"limit_us": LIMIT_US} if batch == 48 and context <= 23_000 else {})


def main() -> int:
    parser = argparse.ArgumentParser(description="time of the launch that prepares a step")
    parser.add_argument("--out", type=Path, default=REPO / "benchmark" / "results")
    out = parser.parse_args().out
    results = []
    for case in CASES:
        results.append(measure(*case))
        shown = {key: value for key, value in results[-1].items() if key != "readings_us"}
        print(
            " ".join(f"{key} {round(value, 1) if isinstance(value, float) else value}" for key, value in shown.items())
        )
    gpu = torch.cuda.get_device_name(0).replace(" ", "-")
    config = {"row": ROW, "launches": LAUNCHES}
    receipt = make_receipt("bench_step_metadata", results, config=config, sources=[KERNEL, Path(__file__)])
    write_receipt(out / f"step_metadata-{gpu}.json", receipt)
    missed = [result for result in results if result["median_us"] > result.get("limit_us", float("inf"))]
    for result in missed:
        case = f"{result['layout']}, batch {result['batch']}, context {result['context']}"
        print(f"over the limit: {case}", file=sys.stderr)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())

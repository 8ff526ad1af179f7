# SPDX-License-Identifier: Apache-2.0
"""Measured roofs of the card, and the clock that every case is read with."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import tvm_ffi

BENCH_LIBRARY = Path(__file__).resolve().parents[1] / "python/sgl_kernel_ddtree/lib/libddtree_bench.so"


@dataclass
class Timing:
    """Microseconds of one call: the median, and every reading behind it."""

    median_us: float
    readings_us: list[float]
    calls_per_reading: int


def time_graph(calls: list[Callable[[], None]], repeats: int = 12, *, single_shot_above_us: float = 1e5) -> Timing:
    """Captures `calls` one after another in a graph and times replays; a reading is replay time / len(calls).

    Rotating the calls over different pools keeps the L2 cold. Where a replay takes longer than `single_shot_above_us`, one
    reading is all there is; `readings_us` shows it.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls[0]()  # lazy compilation and planning must not happen under capture
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def read(count: int) -> list[float]:
        marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
        for begin, end in marks:
            begin.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return [1e3 * begin.elapsed_time(end) / len(calls) for begin, end in marks]

    first = read(1)
    readings = first if first[0] * len(calls) > single_shot_above_us else read(repeats)
    return Timing(statistics.median(readings), readings, len(calls))


def copy_rate(device: torch.device, size: int = 2 * 2**30) -> float:
    """Bytes a second of a device-to-device copy, read and write counted: the better of memcpy and of a copy kernel.

    A memcpy node of a graph may go to a copy engine, which is slower than the SMs on some cards; so both are tried.
    """
    src = torch.empty(size // 4, dtype=torch.int32, device=device).random_()
    dst = torch.empty_like(src)
    copies = (lambda: dst.copy_(src), lambda: torch.bitwise_or(src, 0, out=dst))
    return max(2 * size / (time_graph([copy] * 2).median_us * 1e-6) for copy in copies)


def mma_sync_rate(device: torch.device) -> float:
    """bf16 FLOP/s of mma.sync with operands in registers, on every SM, on random operands."""
    if not BENCH_LIBRARY.is_file():
        raise SystemExit(f"{BENCH_LIBRARY.name} is not built: run `make bench-kernel`, or `make -C sgl-kernel lib BENCH=ON`")
    module = tvm_ffi.load_module(str(BENCH_LIBRARY))
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    best = 0.0
    for blocks_per_sm in (1, 2):
        out = torch.empty(sms * blocks_per_sm * 256, device=device)
        iterations = 20_000 // blocks_per_sm
        flop = module.bench_mma_peak(out, iterations)
        timing = time_graph([partial(module.bench_mma_peak, out, iterations)])
        best = max(best, flop / (timing.median_us * 1e-6))
    return best

# SPDX-License-Identifier: Apache-2.0
"""Where a step goes: kernels of a torch profiler trace, sorted into a handful of kinds.

The server is asked to profile some steps while a request runs. Kernels of the
draft are told from the target's by the CUDA graph that launched them: a step
launches two, and the target's is the one with more kernels.
"""

from __future__ import annotations

import gzip
import json
import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmark.serve.measure import TIMEOUT, stream

# First match wins. Attention and the tree's operators are looked for before the
# general words that their names also contain.
KINDS = (
    ("tree operators", r"tree_build|tree_accept|kv_commit"),
    ("attention", r"tree_verify|BatchPrefill|BatchDecode|flash::|flash_fwd|fmha|_fwd_kernel|_fwd_grouped|MergeState"),
    ("attention metadata", r"create_flashinfer|kv_indices|metadata|get_num_kv_splits|mask_words|page_table"),
    ("GEMM", r"gemm|nvjet|cutlass|cublas|splitK|wgrad|bmm|gemv"),
    ("norm, rope, activation", r"norm|rope|rotary|silu|act_and_mul|gelu"),
    ("KV write", r"set_mla_kv|set_kv|store_k|kv_buffer|kv_cache|materialize|concat_mla"),
    ("sampling and top-k", r"argmax|ArgMax|topk|TopK|softmax|SoftMax|sort|Sort|sampling|multinomial|radix|logsumexp"),
    ("copies and fills", r"[Mm]emcpy|[Mm]emset|copy|fill|Fill|cat|Cat|gather|scatter|index"),
)
OTHER, IDLE = "other kernels", "gaps between kernels"


@dataclass(frozen=True)
class Event:
    """Work on the device, or a call of the host; times in microseconds.

    A kernel's ``launch`` is that of the call that launched it; all kernels of a graph have the same.
    """

    name: str
    start: float
    duration: float
    launch: int


@dataclass(frozen=True)
class StepProfile:
    """Mean microseconds a step.

    Attributes:
        steps: whole steps that were seen.
        total: from one step's start to the next one's.
        kinds: kind -> microseconds; gaps included, so they sum to ``total``.
        kernels: kernel name -> [kind, microseconds, launches a step], longest first.
        host_calls: CUDA call -> [microseconds of the host, calls a step], longest first.
    """

    steps: int
    total: float
    kinds: dict[str, float]
    kernels: dict[str, tuple[str, float, float]]
    host_calls: dict[str, tuple[float, float]]


def kind_of(name: str) -> str:
    """The kind of a kernel, by its name."""
    return next((kind for kind, words in KINDS if re.search(words, name)), OTHER)


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
HOST = ("cuda_runtime", "cuda_driver")


def read_trace(trace: Path, categories: tuple[str, ...]) -> list[Event]:
    """Events of these categories in a gzipped Chrome trace, in order of time."""
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    found = [
        Event(event["name"], float(event["ts"]), float(event["dur"]), int(event.get("args", {}).get("correlation", -1)))
        for event in events
        if event.get("cat") in categories
    ]
    return sorted(found, key=lambda event: event.start)


def steps_of(kernels: list[Event], calls: list[Event]) -> StepProfile:
    """Mean step of a trace.

    Args:
        kernels: the device's work.
        calls: the host's calls of CUDA.

    Raises:
        ValueError: the trace holds no two graph launches of the target.
    """
    sizes = Counter(kernel.launch for kernel in kernels)
    # Launches of one kernel are not graphs; of the graphs, the target's are the largest.
    graphs = {launch: size for launch, size in sizes.items() if size > 8}
    largest = max(graphs.values(), default=0)
    target = {launch for launch, size in graphs.items() if size > 0.8 * largest}
    draft = graphs.keys() - target
    starts = [k.start for k in _first_of_each(kernels, target)]
    if len(starts) < 3:
        raise ValueError(f"the trace holds {len(starts)} graph launches of the target; profile more steps")
    # The first and last are cut off by the profiler's own start and end.
    begin, end = starts[1], starts[-1]
    steps = len(starts) - 2

    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    kind_by_name: dict[str, str] = {}
    reached = begin
    for kernel in kernels:
        if not begin <= kernel.start < end:
            continue
        # Kernels may overlap; each counts for what it adds to the busy time.
        stop = kernel.start + kernel.duration
        added = max(0.0, stop - max(reached, kernel.start))
        reached = max(reached, stop)
        kind = kind_of(kernel.name)
        if kind in ("attention", "GEMM"):
            side = "draft" if kernel.launch in draft else "target"
            kind = f"{side} {kind}"
        kinds[kind] += added / steps
        label = f"{kernel.name[:160]}"
        names[label][0] += added / steps
        names[label][1] += 1 / steps
        kind_by_name[label] = kind
    total = (end - begin) / steps
    kinds[IDLE] = max(0.0, total - sum(kinds.values()))
    host: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for call in calls:
        if begin <= call.start < end:
            host[call.name][0] += call.duration / steps
            host[call.name][1] += 1 / steps
    longest = sorted(names.items(), key=lambda item: -item[1][0])
    return StepProfile(
        steps=steps,
        total=total,
        kinds=dict(sorted(kinds.items(), key=lambda item: -item[1])),
        kernels={name: (kind_by_name[name], micros, count) for name, (micros, count) in longest},
        host_calls={name: (micros, count) for name, (micros, count) in sorted(host.items(), key=lambda h: -h[1][0])},
    )


def _first_of_each(kernels: list[Event], launches: set[int]) -> list[Event]:
    seen: set[int] = set()
    firsts = []
    for kernel in kernels:
        if kernel.launch in launches and kernel.launch not in seen:
            seen.add(kernel.launch)
            firsts.append(kernel)
    return firsts


def profile_server(url: str, ids: list[int], steps: int, folder: Path, room: int) -> StepProfile:
    """Profile ``steps`` steps of a request whose prefix ``ids`` is cached; the trace stays in ``folder``.

    Raises:
        TimeoutError: no trace came.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.glob("*.trace.json.gz"))
    chunks = stream(url, ids, room)
    try:
        next(chunks)
        body: dict[str, Any] = {
            "output_dir": str(folder.resolve()),
            "num_steps": steps,
            "activities": ["GPU"],
            "with_stack": False,
            "record_shapes": False,
        }
        httpx.post(f"{url}/start_profile", json=body, timeout=TIMEOUT).raise_for_status()
        for _ in chunks:
            if set(folder.glob("*.trace.json.gz")) - before:
                break
    finally:
        chunks.close()
    trace = _whole(folder, before)
    return steps_of(read_trace(trace, DEVICE), read_trace(trace, HOST))


def _whole(folder: Path, before: set[Path]) -> Path:
    """The new trace, once it is written to its end."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        for trace in set(folder.glob("*.trace.json.gz")) - before:
            try:
                with gzip.open(trace) as file:
                    while file.read(1 << 20):
                        pass
                return trace
            except EOFError:
                pass
        time.sleep(0.2)
    raise TimeoutError(f"no trace in {folder}")

# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmark.bench_verify_switch``: the cutover switch in a real server with CUDA graphs.

One server (one rank of Kimi K2, six layers, random weights, batch 1), started in ``validate`` with all three modes
captured. For each context: what ``validate`` counted over at least ``--steps`` steps, milliseconds a step in each mode,
and whether the modes chose the same greedy tokens. Then the modes are changed while a request runs. Writes
OUT/verify-switch-GPU.json.

Results: one object a context with ``validation`` (as in docs/verify-switch.md), ``median_ms`` by mode and
``same_tokens``, the number of leading greedy tokens on which each mode agrees with ``on`` (of ``compared_tokens``;
random weights have near ties, which rounding decides). The last object has ``memory_bytes`` of the sets of graphs and
``switch_ms``, the time of each POST while a request ran.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx

from benchmark.receipt import REPO, make_receipt, write_receipt
from benchmark.serve import models
from benchmark.serve.configs import ServeConfig, log_path
from benchmark.serve.measure import measure, prompt, stream
from tools.sglang_server import Server

MODES = ("off", "validate", "on")
KEY = "bench"
TIMEOUT = 300
ROOM = 8192
COMPARED_TOKENS = 200


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.bench_verify_switch", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--algorithm", default="DDTREE", choices=["DFLASH", "DDTREE"])
    parser.add_argument("--width", type=int, default=32, help="DDTREE's budget, or DFLASH's block")
    parser.add_argument("--draft-backend", default="triton")
    parser.add_argument("--contexts", nargs="+", type=int, default=[5700, 23000])
    parser.add_argument("--steps", type=int, default=200, help="steps that validate counts at each context, at least")
    parser.add_argument("--samples", type=int, default=12, help="of each time; the median counts")
    parser.add_argument("--server-args", default="", help="further arguments of the server, in one string")
    parser.add_argument("--work", type=Path, default=REPO / "build" / "bench-serve", help="log and checkpoints")
    parser.add_argument("--out", type=Path, default=REPO / "benchmark" / "results")
    return parser.parse_args(arguments)


class Switch:
    """The endpoint of one server."""

    def __init__(self, url: str):
        self._url = f"{url}/ddtree_verify"
        self._headers = {"Authorization": f"Bearer {KEY}"}

    def state(self) -> dict[str, Any]:
        return self._state_of(httpx.get(self._url, headers=self._headers, timeout=TIMEOUT))

    def set(self, mode: str) -> dict[str, Any]:
        return self._state_of(httpx.post(self._url, headers=self._headers, json={"mode": mode}, timeout=TIMEOUT))

    @staticmethod
    def _state_of(answer: httpx.Response) -> dict[str, Any]:
        answer.raise_for_status()
        (state,) = answer.json()["states"]
        return state


def tokens(url: str, ids: list[int], count: int) -> list[int]:
    """Greedy continuation."""
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": count, "temperature": 0.0, "ignore_eos": True},
    }
    answer = httpx.post(f"{url}/generate", json=body, timeout=TIMEOUT)
    answer.raise_for_status()
    return answer.json()["output_ids"]


def figures(url: str, switch: Switch, context: int, args: argparse.Namespace) -> dict[str, Any]:
    ids = prompt(context)
    result: dict[str, Any] = {"context": context, "median_ms": {}, "quartiles_ms": {}}
    chosen = {}
    for mode in MODES:
        switch.set(mode)
        chosen[mode] = tokens(url, ids, COMPARED_TOKENS)
        times = measure(url, ids, args.samples, ROOM).as_result()
        result["median_ms"][mode], result["quartiles_ms"][mode] = times["median_ms"], times["quartiles_ms"]
        if mode == "validate":
            while (state := switch.state())["validation"]["steps"] < args.steps:
                tokens(url, ids, COMPARED_TOKENS)
            result["validation"] = state["validation"]
    result["compared_tokens"] = COMPARED_TOKENS
    result["same_tokens"] = {
        mode: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen[mode], chosen["on"], strict=True)))
        for mode in MODES
    }
    return result


def switch_while_running(url: str, switch: Switch, context: int) -> dict[str, Any]:
    """Milliseconds of each switch while one request streams, and what it took of the stream."""
    taken, gaps, last = [], [], None
    for number, chunk in enumerate(stream(url, prompt(context), 2000)):
        if last is not None:
            gaps.append(chunk.seconds - last)
        last = chunk.seconds
        if number % 40 == 20:
            begun = time.perf_counter()
            switch.set(MODES[len(taken) % 3])
            taken.append(1e3 * (time.perf_counter() - begun))
    return {"context": context, "switch_ms": taken, "median_chunk_ms": 1e3 * statistics.median(gaps)}


def main(arguments: Sequence[str]) -> int:
    args = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config = ServeConfig(args.algorithm, "ddtree_sm120", args.draft_backend, args.width)
    more = ["--admin-api-key", KEY, "--ddtree-verify", "validate", *shlex.split(args.server_args)]
    server_arguments = config.arguments(models.ensure(args.work / "models"), max(args.contexts), more)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    server = Server(server_arguments, log_path(args.work / "logs", config), environ)
    results: list[dict[str, Any]] = []
    try:
        server.wait_ready()
        switch = Switch(server.url)
        first = switch.state()
        print(first, flush=True)
        for context in args.contexts:
            results.append(figures(server.url, switch, context, args))
            print(results[-1], flush=True)
        results.append(switch_while_running(server.url, switch, args.contexts[0]))
        results[-1]["memory_bytes"] = first["memory_bytes"]
        print(results[-1], flush=True)
    finally:
        server.stop()
        if results:
            _write(args, results)
    return 0


def _write(args: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    config = {
        "batch": 1,
        "algorithm": args.algorithm,
        "width": args.width,
        "draft_backend": args.draft_backend,
        "models": "generated: 6 layers of a Kimi K2 rank (TP 8), one draft layer",
        "samples": args.samples,
        "server_args": args.server_args,
    }
    sources = [Path(__file__), *(REPO / "python" / "sglang").rglob("*.py")]
    receipt = make_receipt("bench_verify_switch", results, config=config, sources=sources)
    write_receipt(args.out / f"verify-switch-{str(receipt['host']['gpu']).replace(' ', '-')}.json", receipt)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

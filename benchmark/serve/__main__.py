# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmark.serve``: milliseconds a verify step of real servers, backend against backend.

Writes OUT/serve-GPU.json (receipt), .png (plot), .md (tables); with ``--profile`` also serve-GPU-profile.png.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.receipt import REPO, make_receipt, write_receipt
from benchmark.serve import models, report
from benchmark.serve.configs import ServeConfig, log_path
from benchmark.serve.measure import measure, measure_whole, prompt
from benchmark.serve.profile import profile_server
from tools.sglang_server import Server, ServerDied
from tools.tiny_models import ModelPair

BASELINE, SUBJECT = "triton", "ddtree_sm120"

# The longest kernels of each profile that the receipt keeps.
KEPT_KERNELS = 25

# At most this many tokens after a prompt: many more than the samples need.
ROOM = 8192


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.serve",
        description="milliseconds a verify step of real servers, batch 1, CUDA graphs and overlap scheduler on",
    )
    parser.add_argument("--backends", nargs="+", default=[BASELINE, SUBJECT], help="attention backends of the target")
    parser.add_argument("--algorithms", nargs="+", default=["DFLASH", "DDTREE"], choices=["DFLASH", "DDTREE"])
    parser.add_argument(
        "--baseline-algorithms",
        nargs="*",
        choices=["DFLASH", "DDTREE"],
        help="those measured on the other backends than the last; all of --algorithms if not given",
    )
    parser.add_argument(
        "--turn-ms",
        type=float,
        default=3.0,
        help="--speculative-turn-ms of the last of --backends: device time of the steps of a scheduler's turn",
    )
    parser.add_argument(
        "--one-step-algorithms",
        nargs="*",
        default=["DFLASH"],
        choices=["DFLASH", "DDTREE"],
        help="those measured on the last of --backends with one step a turn, too",
    )
    parser.add_argument("--contexts", nargs="+", type=int, default=[5700, 23000, 90000], help="tokens before the step")
    parser.add_argument("--block-size", type=int, default=8, help="DFLASH's block, its first token included")
    parser.add_argument("--budget", type=int, default=32, help="DDTREE's nodes a tree besides the root")
    parser.add_argument(
        "--draft-backends",
        nargs="+",
        default=["ddtree_sm120"],
        help="attention backends of the draft; each is tried with the last of --backends; the fastest serves the rest",
    )
    parser.add_argument(
        "--baseline-draft-backend",
        default="flashinfer",
        help="attention backend of the draft beside the other --backends than the last",
    )
    parser.add_argument("--samples", type=int, default=12, help="of each figure; the median counts")
    parser.add_argument("--model", type=Path, help="another target than the generated one, with --draft")
    parser.add_argument("--draft", type=Path, help="its DFLASH draft")
    parser.add_argument(
        "--profile", action="store_true", help="also a table of where a step goes, of the last of --backends"
    )
    parser.add_argument("--profile-steps", type=int, default=20)
    parser.add_argument("--start-together", type=int, default=1, help="servers started side by side; measured in turn")
    parser.add_argument("--server-args", default="", help="further arguments of every server, in one string")
    parser.add_argument("--work", type=Path, default=REPO / "build" / "bench-serve", help="logs, traces, checkpoints")
    parser.add_argument("--out", type=Path, default=REPO / "benchmark" / "results")
    args = parser.parse_args(arguments)
    if (args.model is None) != (args.draft is None):
        parser.error("--model and --draft go together")
    if args.baseline_algorithms is None:
        args.baseline_algorithms = args.algorithms
    if args.samples < 10:
        parser.error("--samples: a median needs at least 10")
    return args


class Bench:
    """Servers measured one after the other; results gather in ``results``, which ``save`` writes after each server."""

    def __init__(self, args: argparse.Namespace, save: Callable[[list[report.Result]], object]) -> None:
        self.args = args
        self.results: list[report.Result] = []
        self._save = save
        self._pair = ModelPair(args.model, args.draft) if args.model else models.ensure(args.work / "models")
        self._more = shlex.split(args.server_args)
        self._environ = {**os.environ, "HF_HUB_OFFLINE": "1"}

    def compare(self) -> None:
        """The last backend first, on every algorithm, then the others.

        With several draft backends, the first algorithm is tried with each of
        them on the last backend, and the fastest serves the rest.
        """
        args = self.args
        widths = {"DFLASH": args.block_size, "DDTREE": args.budget}
        first, subject = args.algorithms[0], args.backends[-1]
        pairs = [(algorithm, subject) for algorithm in args.algorithms]
        pairs += [(algorithm, backend) for backend in args.backends[:-1] for algorithm in args.baseline_algorithms]
        draft = args.draft_backends[0]
        if len(args.draft_backends) > 1:
            drafts = args.draft_backends
            self._run([ServeConfig(first, subject, draft, widths[first], args.turn_ms) for draft in drafts])
            draft = self._fastest_draft_backend()
            pairs.remove((first, subject))
            _say(f"draft attention: {draft} is the fastest of {', '.join(args.draft_backends)}")
        ours = [ServeConfig(a, b, draft, widths[a], args.turn_ms) for a, b in pairs if b == subject]
        ours += [ServeConfig(a, subject, draft, widths[a]) for a in args.one_step_algorithms]
        others = [ServeConfig(a, b, args.baseline_draft_backend, widths[a]) for a, b in pairs if b != subject]
        self._run([*ours, *others])

    def _run(self, configs: list[ServeConfig]) -> None:
        together = self.args.start_together
        for first in range(0, len(configs), together):
            servers = {config: self._start(config) for config in configs[first : first + together]}
            try:
                # A start takes many cores, which would be missed by a server that is measured.
                ready = {config: server for config, server in servers.items() if self._wait_ready(config, server)}
                # Nor shall the host be shared with schedulers that poll for requests.
                for server in ready.values():
                    server.pause()
                for config, server in ready.items():
                    server.resume()
                    self._measure(config, server)
                    server.stop(at_once=True)
                    self._save(self.results)
            finally:
                for server in servers.values():
                    server.stop(at_once=True)

    def _start(self, config: ServeConfig) -> Server:
        arguments = config.arguments(self._pair, max(self.args.contexts), self._more)
        return Server(arguments, log_path(self.args.work / "logs", config), self._environ)

    def _wait_ready(self, config: ServeConfig, server: Server) -> bool:
        begun = time.monotonic()
        try:
            server.wait_ready()
        except ServerDied as error:
            _say(f"{config.label}: {error}")
            self._note(config, [{"context": c, "error": _reason(error)} for c in self.args.contexts])
            return False
        _say(f"{config.label}: ready, waited {time.monotonic() - begun:.0f} s")
        return True

    def _measure(self, config: ServeConfig, server: Server) -> None:
        _say(config.label)
        for context in self.args.contexts:
            self._note(config, [{"context": context} | self._figures(config, server, context)])

    def _figures(self, config: ServeConfig, server: Server, context: int) -> report.Result:
        ids = prompt(context)
        try:
            times = measure(server.url, ids, self.args.samples, ROOM)
            found = times.as_result()
            found |= measure_whole(server.url, ids, self.args.samples, times).as_result()
            _say(
                f"  {context:,}: {times.median:.3f} ms a step streamed, {found['whole_median_ms']:.3f} answered whole, "
                f"accept length {times.accept_length:.2f}"
            )
            if self.args.profile and config.backend == self.args.backends[-1]:
                traces = self.args.work / "traces" / config.file_name
                profile = asdict(profile_server(server.url, ids, self.args.profile_steps, traces, ROOM))
                profile["kernels"] = dict(list(profile["kernels"].items())[:KEPT_KERNELS])
                found["profile"] = profile
        except Exception as error:  # one server's fault must not lose the other's figures
            _say(f"  {context:,}: {type(error).__name__}: {error}")
            return {"error": f"{type(error).__name__}: {error}"}
        return found

    def _note(self, config: ServeConfig, rows: list[report.Result]) -> None:
        self.results += [asdict(config) | row for row in rows]

    def _fastest_draft_backend(self) -> str:
        """The draft backend with the least time at the longest context; the first one if none was measured."""
        longest = max(self.args.contexts)
        times = {
            r["draft_backend"]: r["median_ms"] for r in self.results if r["context"] == longest and "median_ms" in r
        }
        return min(times, key=times.__getitem__, default=self.args.draft_backends[0])


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return next((line.strip() for line in reversed(lines) if "Error" in line), lines[0])[:200]


def _say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a figure is missing. Interrupted, it writes what it has."""
    args = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bench = Bench(args, partial(write_receipt_of, args))
    try:
        bench.compare()
    finally:
        if bench.results:
            write(args, bench.results)
    return int(any("error" in r for r in bench.results))


def write_receipt_of(args: argparse.Namespace, results: list[report.Result]) -> tuple[dict[str, Any], Path]:
    """Writes the receipt under ``args.out``; returns it, and its path without the suffix."""
    config = {
        "batch": 1,
        "draft_backends_tried": args.draft_backends,
        "models": "given" if args.model else "generated: 6 layers of a Kimi K2 rank (TP 8), one draft layer",
        "samples": args.samples,
        "server_args": args.server_args,
        "started_together": args.start_together,
    }
    measuring = [path for path in Path(__file__).parent.glob("*.py") if path.stem != "plots"]
    sources = [*measuring, *(REPO / "python" / "sglang").rglob("*.py")]
    receipt = make_receipt("bench_serve", results, config=config, sources=sources)
    stem = args.out / f"serve-{str(receipt['host']['gpu']).replace(' ', '-')}"
    write_receipt(stem.with_suffix(".json"), receipt)
    return receipt, stem


def write(args: argparse.Namespace, results: list[report.Result]) -> None:
    """Tables, plots and receipt under ``args.out``."""
    receipt, stem = write_receipt_of(args, results)
    tables = [report.step_table(results)]
    if args.profile:
        tables.append(report.profile_table(results))
    stem.with_suffix(".md").write_text("\n\n".join(tables) + "\n")
    _say("\n\n".join(tables))
    try:
        from benchmark.serve.plots import draw
    except ModuleNotFoundError as error:
        _say(f"no plots, {error.name} is not installed; later: python -m benchmark.serve.plots {stem.name}.json")
        return
    draw(receipt, stem)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

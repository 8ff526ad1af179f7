# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.serve [--model M --draft D] [--port P] [-- SERVER ARGUMENTS]``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from fork.install import detect_flavour
from tools.processes import ProcessGroup
from tools.serve.arguments import ALGORITHM, BACKEND, Launch
from tools.serve.progress import Progress, step_of

HOST = "127.0.0.1"
BUILD = Path(__file__).parents[2] / "build"
TINY_PAIR = "trained-mla"
# What to try with that pair. No apostrophe: it stands in single quotes of a shell.
TRIED = 'def read_lines(path):\n    """Return the lines of a file."""\n    '


class Stopped(Exception):
    """Someone asked this process to end."""


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line; all after ``--`` is for the server."""
    parser = argparse.ArgumentParser(prog="python -m tools.serve", description=__doc__)
    parser.add_argument("--model", help="target: a directory or a name on the hub")
    parser.add_argument("--draft", help="the DFLASH draft of that target")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("server", nargs="*", help="further arguments of sglang serve")
    args = parser.parse_args(argv)
    if (args.model is None) != (args.draft is None):
        parser.error(
            "a target and its draft belong together: give both --model and --draft "
            "(MODEL= and DRAFT=), or neither for the small pair of this repository"
        )
    return args


def refuse_taken_port(port: int) -> None:
    """End with a message if something listens on the port, before any work is done."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            sys.exit(f"error: port {port} of {HOST} cannot be used: {error.strerror}. Say PORT=another.")


def tiny_pair(progress: Progress) -> tuple[str, str]:
    """Directories of the small target and draft."""
    progress.show("looking for the models")
    # Imports torch: not before it is needed.
    from tools.tiny_models import ensure

    pair = ensure(BUILD / "tiny-models", TINY_PAIR, progress.show)
    return str(pair.target), str(pair.draft)


def wait_ready(server: ProcessGroup, launch: Launch, progress: Progress) -> None:
    """Return when the server is warm; end with its log's last lines if it dies."""
    while not answers(f"{launch.url}/health"):
        if server.exit_status is not None:
            progress.end()
            tail = "\n".join(server.errors().splitlines()[-25:])
            sys.exit(f"{tail}\n\nerror: the server ended while starting; all of its log: {server.log}")
        progress.show(step_of(server.errors()))
        time.sleep(0.5)


def answers(url: str) -> bool:
    """Whether a GET of the URL gives 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def introduce(launch: Launch, log: Path, tiny: bool) -> None:
    """Say that the server is ready, and what to try."""
    prompt = TRIED if tiny else "The capital of France is"
    small = (
        "\nThe models are small ones that were trained on Python's own library (docs/trained-pair.md):\n"
        "they continue code. MODEL= and DRAFT= serve others.\n"
        if tiny
        else ""
    )
    print(
        f"""
Ready: {launch.url} serves the OpenAI API; {ALGORITHM} on {BACKEND}, {"GPU" if launch.gpu else "CPU"}.
{small}
  curl {launch.url}/v1/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "default", "prompt": {json.dumps(prompt)}, "max_tokens": 96, "temperature": 0}}'

Log: {log}. Ctrl-C stops the server.""",
        flush=True,
    )


def stop_on_signal(number: int, _frame: object) -> None:
    raise Stopped(signal.Signals(number).name)


def main() -> None:
    args = parse(sys.argv[1:])
    refuse_taken_port(args.port)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop_on_signal)
    progress = Progress()
    server = None
    try:
        tiny = args.model is None
        target, draft = tiny_pair(progress) if tiny else (args.model, args.draft)
        launch = Launch(target, draft, HOST, args.port, gpu=detect_flavour() == "cuda")
        sglang = str(Path(sys.executable).with_name("sglang"))
        command = [sglang, "serve", *launch.arguments(), *args.server]
        server = ProcessGroup(command, BUILD / f"serve-{args.port}.log", os.environ)
        wait_ready(server, launch, progress)
        progress.show("ready")
        progress.end()
        introduce(launch, server.log, tiny)
        status = server.wait()
        sys.exit(f"error: the server ended by itself, exit status {status}; its log: {server.log}")
    except Stopped:
        progress.end()
        print("stopping", flush=True)
    finally:
        if server is not None:
            server.stop()


if __name__ == "__main__":
    main()

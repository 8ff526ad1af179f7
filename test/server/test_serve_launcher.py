# SPDX-License-Identifier: Apache-2.0
"""``make serve`` as a user has it: progress, a ready line with a working ``curl``, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness.process import START_SECONDS, free_port

from tools.processes import STOP_SECONDS, ProcessGroup, is_alive, wait_until

REPOSITORY = Path(__file__).parents[2]
LAUNCHER = [sys.executable, "-m", "tools.serve"]


@pytest.fixture
def launched(
    environ: dict[str, str], logs: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ProcessGroup, int]]:
    """A launcher that has just been started, and its port."""
    monkeypatch.chdir(REPOSITORY)
    port = free_port()
    launcher = ProcessGroup(
        [*LAUNCHER, "--port", str(port), "--", "--log-level", "warning"], logs / "serve.log", environ
    )
    yield launcher, port
    launcher.signal(signal.SIGTERM)
    launcher.wait(2 * STOP_SECONDS)


def said(launcher: ProcessGroup) -> str:
    """What the launcher has printed on standard output."""
    return launcher.log.with_suffix(".out").read_text()


def test_a_server_from_start_to_ctrl_c(launched):
    launcher, port = launched
    wait_until(
        lambda: "Ctrl-C" in said(launcher) or launcher.exit_status is not None,
        START_SECONDS,
        "ready line",
    )
    assert f"Ready: http://127.0.0.1:{port}" in said(launcher)
    assert re.search(r"^\[ +\d+ s\] importing libraries$", launcher.errors(), re.MULTILINE)

    (command,) = re.findall(r"curl .*\\\n.*", said(launcher))
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    # The trained pair continues a function.
    (choice,) = json.loads(answer.stdout)["choices"]
    lines = choice["text"].split("\n")
    assert len(lines) > 3
    assert re.search(r"^ +(for|if|with|while|return) .*", choice["text"], re.MULTILINE)

    family = psutil.Process(launcher.pgid).children(recursive=True)
    assert len(family) > 2
    launcher.signal(signal.SIGINT)
    assert launcher.wait(2 * STOP_SECONDS) == 0
    assert not [process for process in family if is_alive(process)]
    assert said(launcher).endswith("stopping\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--model", "target-without-draft"], "--draft"),
        (["--draft", "draft-without-target"], "--model"),
        (["--port", "not-a-number"], "--port"),
    ],
)
def test_wrong_arguments(arguments, error):
    ended = subprocess.run(
        [*LAUNCHER, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert error in ended.stderr.splitlines()[-1]


def test_a_port_in_use_is_refused_before_anything_is_started():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ended = subprocess.run(
            [*LAUNCHER, "--port", str(port)], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
        )
    assert ended.returncode == 1
    assert f"port {port}" in ended.stderr
    assert "PORT=" in ended.stderr


def test_a_server_that_cannot_start_is_reported(environ):
    """The launcher passes the server's own error on, and its failure."""
    ended = subprocess.run(
        [*LAUNCHER, "--port", str(free_port()), "--", "--attention-backend", "nonsense"],
        cwd=REPOSITORY,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert ended.returncode == 1
    assert "invalid choice: 'nonsense'" in ended.stderr
    assert "the server ended while starting" in ended.stderr

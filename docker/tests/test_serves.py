# SPDX-License-Identifier: Apache-2.0
"""The ``cpu`` image serves, as its own health check and the tool inside see it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine import BUILD, ROOT, Container

from tools.tiny_models import ensure

START_SECONDS = 240


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny ``target`` and ``draft`` that the image's user may read."""
    pair = ensure(ROOT / "build" / "tiny-models", "cycle-mla")
    folder = tmp_path_factory.mktemp("models")
    for name, source in (("target", pair.target), ("draft", pair.draft)):
        shutil.copytree(source, folder / name)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture(scope="module")
def served(container: Container, config: dict[str, Any], models: Path) -> Iterator[tuple[Container, str, Any]]:
    """The image's server on a free port; its health as the image's own check sees it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = [
        *config["Entrypoint"],
        *("--model-path", "/models/target", "--speculative-draft-model-path", "/models/draft"),
        *("--speculative-algorithm", "DDTREE", "--speculative-draft-attention-backend", "ddtree_sm120"),
        *("--attention-backend", "ddtree_sm120", "--device", "cpu", "--dtype", "float32"),
        *("--max-total-tokens", "4096", "--max-running-requests", "4", "--sleep-on-idle"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    options = (
        f"--volume={models}:/models:ro",
        *("--env", f"SGLANG_DDTREE_URL={url}", "--env", "HF_HUB_OFFLINE=1", "--env", "OMP_NUM_THREADS=1"),
    )
    log = BUILD / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            container.command(*words, options=options), stdout=out, stderr=out, start_new_session=True
        )
    end = time.monotonic() + START_SECONDS
    check = ["env", f"SGLANG_DDTREE_URL={url}", *config["Healthcheck"]["Test"][1:]]
    assert container.run(*check).returncode == 1, "healthy before it serves"
    while container.run(*check).returncode != 0:
        assert process.poll() is None and time.monotonic() < end, Path(log).read_text()[-3000:]
        time.sleep(1)
    yield container, url, process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def test_it_serves(served):
    _, url, _ = served
    body = {"model": "default", "prompt": "b", "max_tokens": 12, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        said = json.load(answer)["choices"][0]["text"]
    # The toy model walks a cycle of letters.
    assert said.replace(" ", "").startswith("cbcb")


def test_the_tool_inside(served):
    container, url, _ = served
    shown = container.run("sglang-ddtree", "status", "--url", url)
    assert shown.returncode == 0 and "mode: on" in shown.stdout, shown.stdout + shown.stderr


def test_it_stops(served):
    _, _, process = served
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(60)

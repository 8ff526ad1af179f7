# SPDX-License-Identifier: Apache-2.0
"""The ``cpu`` image: what it says of itself, what is in it and what not, and that it serves."""

from __future__ import annotations

import hashlib
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
from engine import BUILD, ROOT, Buildah

from fork import config as fork_config
from tools.tiny_models import ensure

UID = "10001"
START_SECONDS = 240
MANIFEST = "/opt/sglang/lib/python3.11/site-packages/sglang/_ddtree_manifest.json"
LIMIT_BYTES = 3 * 10**9


class Container:
    """A container of the image. Its commands run with what the image has set: user, environment, folder."""

    def __init__(self, buildah: Buildah, image: str) -> None:
        self._buildah = buildah
        self._name = buildah("from", "--pull-never", image)

    def command(self, *words: str, options: tuple[str, ...] = ()) -> list[str]:
        """The command line that runs ``words`` inside."""
        return self._buildah.command("run", "--isolation", "chroot", *options, self._name, "--", *words)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(self.command(*words), capture_output=True, text=True, check=False)

    def remove(self) -> None:
        """Delete it."""
        self._buildah("rm", self._name)


@pytest.fixture(scope="module")
def config(buildah: Buildah, image: str) -> dict[str, Any]:
    return buildah.config(image)


@pytest.fixture(scope="module")
def container(buildah: Buildah, image: str) -> Iterator[Container]:
    container = Container(buildah, image)
    yield container
    container.remove()


def test_labels(config, container):
    labels = config["Labels"]
    manifest = container.run("cat", MANIFEST).stdout
    assert labels["sglang-ddtree.manifest.sha256"] == hashlib.sha256(manifest.encode()).hexdigest()
    conf = fork_config.load()
    assert json.loads(manifest)["version"] == conf.fork_version == labels["org.opencontainers.image.version"]
    assert labels["sglang-ddtree.upstream.version"] == conf.version
    commit = labels["org.opencontainers.image.revision"].removesuffix("-dirty")
    known = subprocess.run(["git", "cat-file", "-t", commit], cwd=ROOT, capture_output=True, text=True, check=True)
    assert known.stdout == "commit\n" and len(commit) == 40
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["sglang-ddtree.flavour"] == "cpu"


def test_settings(config):
    assert config["User"] == f"{UID}:{UID}"
    assert config["Entrypoint"] == ["sglang", "serve"]
    assert set(config["Volumes"]) == {"/models", "/cache"} and set(config["ExposedPorts"]) == {"30000/tcp"}
    check = config["Healthcheck"]
    assert check["Test"] == ["CMD", "sglang-ddtree", "health"]
    assert check["StartPeriod"] == 45 * 60 * 10**9 and check["Interval"] < 60 * 10**9


def test_who_runs_it(container):
    assert container.run("id", "-u").stdout.strip() == UID
    assert container.run("touch", "/opt/sglang/x").returncode != 0
    assert container.run("touch", "/cache/x").returncode == 0


def test_what_is_not_in_it(container):
    for program in ("cc", "gcc", "g++", "ld", "make", "cmake", "ninja", "nvcc", "pip", "curl", "git"):
        assert container.run("sh", "-c", f"command -v {program}").returncode != 0, program
    assert container.run("test", "-e", "/src").returncode != 0
    # The settings that the build got as a secret.
    assert container.run("test", "-s", "/etc/pip.conf").returncode != 0


def test_size(buildah, image):
    number, unit = json.loads(buildah("images", "--json", image))[0]["size"].split()
    assert float(number) * {"MB": 1e6, "GB": 1e9}[unit] < LIMIT_BYTES


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

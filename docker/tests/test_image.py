# SPDX-License-Identifier: Apache-2.0
"""An image of either flavour: what it says of itself, what is in it and what not."""

from __future__ import annotations

import hashlib
import json
import subprocess

from engine import ROOT

from docker.build_args import PYTHONS
from fork import config as fork_config

UID = "10001"
LIMIT_BYTES = {"cpu": 3 * 10**9, "cuda": 14 * 10**9}


def test_labels(config, container, flavour):
    labels = config["Labels"]
    packages = f"/opt/sglang/lib/python{PYTHONS[flavour]}/site-packages"
    manifest = container.run("cat", f"{packages}/sglang/_ddtree_manifest.json").stdout
    assert labels["sglang-ddtree.manifest.sha256"] == hashlib.sha256(manifest.encode()).hexdigest()
    conf = fork_config.load()
    assert json.loads(manifest)["version"] == conf.fork_version == labels["org.opencontainers.image.version"]
    assert labels["sglang-ddtree.upstream.version"] == conf.version
    commit = labels["org.opencontainers.image.revision"].removesuffix("-dirty")
    known = subprocess.run(["git", "cat-file", "-t", commit], cwd=ROOT, capture_output=True, text=True, check=True)
    assert known.stdout == "commit\n" and len(commit) == 40
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["sglang-ddtree.flavour"] == flavour


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


def test_what_is_not_in_it(container, flavour):
    # What the server of the cuda image compiles with: docker/README.md says why.
    compilers = ("cc", "gcc", "g++", "ld", "ninja", "nvcc") if flavour == "cpu" else ()
    for program in (*compilers, "make", "cmake", "pip", "curl", "git"):
        assert container.run("sh", "-c", f"command -v {program}").returncode != 0, program
    assert container.run("test", "-e", "/src").returncode != 0
    # The settings that the build got as a secret.
    assert container.run("test", "-s", "/etc/pip.conf").returncode != 0


def test_size(buildah, image, flavour):
    number, unit = json.loads(buildah("images", "--json", image))[0]["size"].split()
    assert float(number) * {"MB": 1e6, "GB": 1e9}[unit] < LIMIT_BYTES[flavour]


def test_the_programs_start(container):
    """``sglang serve`` imports the server, on a machine without a GPU too."""
    shown = container.run("sglang", "serve", "--help")
    assert shown.returncode == 0 and "--speculative-ddtree-budget" in shown.stdout, shown.stderr[-3000:]
    assert container.run("sglang-ddtree", "--help").returncode == 0

# SPDX-License-Identifier: Apache-2.0
"""The tool as a program of its own, in copies of this checkout that something is wrong with: one line, no traceback."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fork import apply, patches, wheel
from fork import config as configuration
from fork.rebase.move import LEFT_OUT

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """What the tool reads of this checkout."""
    root = tmp_path_factory.mktemp("clean") / "checkout"
    for name in ("fork", "patches", "python", "sgl-kernel/cpu"):
        shutil.copytree(ROOT / name, root / name, ignore=LEFT_OUT)
    for name in ("upstream.toml", "NOTICE"):
        shutil.copy(ROOT / name, root)
    return root


@pytest.fixture
def checkout(clean, tmp_path):
    return Path(shutil.copytree(clean, tmp_path / "checkout"))


@pytest.fixture
def fork(checkout, tmp_path):
    """Runs a command in the copy; ``wheels`` is the only registry that there is."""

    def run(*arguments: str, wheels: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
        variables = {**os.environ, **environment}
        if wheels is not None:
            variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        command = [sys.executable, "-m", "fork", *arguments]
        return subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, check=False)

    return run


def told(done: subprocess.CompletedProcess) -> str:
    """The one line of a failure."""
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    *progress, line = done.stderr.splitlines()
    assert all(text.startswith("fetching sglang") for text in progress), done.stderr
    assert line.startswith("fork: ")
    return line.removeprefix("fork: ")


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("command", [("check",), ("build", "--out", "out"), ("rebase", "--to", "0.5.22"), ("matrix",)])
def test_bad_toml(fork, checkout, command):
    change(checkout / "upstream.toml", "[upstream]", "[upstream")
    assert told(fork(*command)).startswith(f"{checkout}/upstream.toml: not valid TOML: ")


def test_a_key_that_is_missing(fork, checkout):
    change(checkout / "upstream.toml", "supported =", "carried =")
    assert told(fork("check")) == f"{checkout}/upstream.toml: a key is missing or has the wrong type: 'supported'"


def test_a_bad_patch(fork, checkout):
    change(checkout / "patches" / "0001-version.toml", "[[edit]]", "[[edit]")
    assert told(fork("check")).startswith(f"{checkout}/patches/0001-version.toml: not valid TOML: ")


def test_a_wrong_hash(fork, checkout, pinned):
    change(checkout / "upstream.toml", pinned.sha256, "0" * 64)
    line = told(fork("check", wheels=pinned.path.parent))
    assert line.startswith(f"{pinned.path.name}: wrong sha256: {pinned.sha256}")


def test_a_truncated_wheel(fork, pinned, tmp_path):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / pinned.path.name).write_bytes(pinned.path.read_bytes()[:1_000_000])
    line = told(fork("check", wheels=tmp_path / "wheels"))
    assert line.startswith(f"sglang=={pinned.version} cannot be fetched: ") and "invalid" in line
    assert not list((tmp_path / "cache").rglob("*.whl"))


def test_a_folder_that_cannot_be_written(fork):
    assert told(fork("check", XDG_CACHE_HOME="/sys/cache")).startswith(
        "/sys/cache/sglang-ddtree: not writable; set XDG_"
    )
    assert told(fork("build", "--out", "/sys/out")) == "/sys/out: not writable; choose another folder with --out"


def test_windows_line_endings(checkout, config, pinned, tree):
    """A checkout with them gives a build the same inputs."""
    for path in checkout.rglob("*"):
        if path.suffix in (".py", ".toml") or path.name == "NOTICE":
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    theirs = configuration.load(checkout)
    trees = tuple(added for added in config.trees if (checkout / added.source.relative_to(config.root)).is_dir())
    assert len(trees) == len(theirs.trees)
    assert replace(theirs, root=config.root, trees=trees) == replace(config, trees=trees)
    hashes = [[patch.sha256 for patch in patches.load_series(it.patches)] for it in (config, theirs)]
    assert hashes[0] == hashes[1]
    assert apply.read_added(theirs, pinned) == tree.added
    assert wheel.dist_info_files(theirs, pinned) == wheel.dist_info_files(config, pinned)

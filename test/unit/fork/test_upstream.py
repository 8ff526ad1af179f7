# SPDX-License-Identifier: Apache-2.0
"""Fetching: the cache, the hash, and the one line that is told when it cannot be done."""

import errno
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fork import upstream, wheel
from fork.errors import ForkError

PIP = upstream.pip_download


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sglang-ddtree"


@pytest.fixture
def registry(pinned, monkeypatch):
    """A registry that hands out the wheel that is there already, and counts."""
    calls = []

    def download(requirement, folder):
        calls.append(requirement)
        shutil.copy(pinned.path, folder)

    monkeypatch.setattr(upstream, "pip_download", download)
    return calls


def one_line(raised):
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_fetched_once_and_read_from_the_cache(config, cache, registry):
    first, second = upstream.fetch(config), upstream.fetch(config)
    assert registry == [f"sglang=={config.version}"]
    assert first.path == second.path == cache / first.path.name
    assert first.sha256 == config.hashes[config.version][first.path.name]
    assert b"SGLang" in first["sglang/README.md"]


def test_truncated_file_in_the_cache_is_fetched_again(config, cache, registry):
    path = upstream.fetch(config).path
    path.write_bytes(path.read_bytes()[:1000])
    assert upstream.sha256_of(upstream.fetch(config).path) == config.hashes[config.version][path.name]
    assert len(registry) == 2


def test_wrong_hash(config, cache, registry, pinned):
    name = pinned.path.name
    ours = replace(config, hashes={config.version: {name: "0" * 64}})
    with pytest.raises(ForkError) as raised:
        upstream.fetch(ours)
    text = one_line(raised)
    assert text.startswith(f"{name}: wrong sha256: {pinned.sha256} (")
    assert f"upstream.toml pins {'0' * 64}; it is truncated or not upstream's, and was not kept" in text
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_release_that_is_not_pinned(config):
    with pytest.raises(ForkError) as raised:
        upstream.fetch(config, "9.9.9")
    assert one_line(raised) == "upstream.toml has no hashes of sglang 9.9.9; add what `python -m fork pin 9.9.9` prints"


def test_unsupported_python(config, cache, monkeypatch):
    from packaging.tags import Tag

    monkeypatch.setattr(upstream, "sys_tags", lambda: [Tag("cp310", "cp310", "manylinux_2_34_x86_64")])
    with pytest.raises(ForkError) as raised:
        upstream.fetch(config)
    text = one_line(raised)
    assert text.startswith(f"sglang {config.version} has no wheel for Python 3.")
    assert "it needs cp311, cp312, cp313 on Linux x86_64 or aarch64 with glibc 2.34 or newer" in text


@pytest.mark.parametrize("python", ["cp311", "cp312", "cp313"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_each_supported_python_has_its_wheel(config, monkeypatch, python, machine):
    from packaging.tags import Tag

    monkeypatch.setattr(upstream, "sys_tags", lambda: [Tag(python, python, f"manylinux_2_34_{machine}")])
    assert (
        upstream._fitting(config, config.version)
        == f"sglang-{config.version}-{python}-{python}-manylinux_2_34_{machine}.whl"
    )


def test_other_file_than_the_pinned_one(config, cache, monkeypatch):
    monkeypatch.setattr(upstream, "pip_download", lambda _, folder: (folder / "sglang-9-py3-none-any.whl").touch())
    with pytest.raises(
        ForkError, match=rf"gave sglang-9-py3-none-any.whl, upstream.toml pins sglang-{config.version}-cp"
    ):
        upstream.fetch(config)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errno.ENOSPC, "the disk is full; set XDG_CACHE_HOME to a folder that is writable and has 100 MB free"),
        (errno.EROFS, "not writable; set XDG_CACHE_HOME"),
        (errno.EACCES, "not writable; set XDG_CACHE_HOME"),
        (errno.EIO, "Input/output error; set XDG_CACHE_HOME"),
    ],
)
def test_cache_that_cannot_be_written(config, cache, registry, monkeypatch, code, told):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ForkError) as raised:
        upstream.fetch(config)
    assert one_line(raised).startswith(f"{cache}: {told}")
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_cache_under_a_file(config, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ForkError) as raised:
        upstream.fetch(config)
    assert "Not a directory; set XDG_CACHE_HOME" in one_line(raised)


def test_full_disk_while_the_wheel_is_written(config, pinned, tree, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(zipfile.ZipFile, "writestr", fail)
    with pytest.raises(ForkError) as raised:
        wheel.build(config, pinned, tree, tmp_path / "out")
    assert one_line(raised) == f"{tmp_path / 'out'}: the disk is full; choose another folder with --out"
    assert list((tmp_path / "out").iterdir()) == []


def test_cached_file_that_is_no_zip(tmp_path):
    path = tmp_path / "a.whl"
    path.write_bytes(b"nothing")
    with pytest.raises(ForkError, match=r"a.whl: not a readable wheel: File is not a zip file"):
        upstream.UpstreamWheel(path, "1", "")


def test_no_network(tmp_path, monkeypatch):
    """The real pip, with a registry at a port where nothing listens."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")  # a proxy would answer in the registry's place
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ForkError) as raised:
        PIP("sglang==0.5.23", tmp_path)
    assert (
        one_line(raised)
        == "sglang==0.5.23 cannot be fetched: no network, or the registry that pip is set to does not answer"
    )


def test_release_that_does_not_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ForkError) as raised:
        PIP("sglang==99.99", tmp_path)
    assert one_line(raised).startswith("sglang==99.99 cannot be fetched: Could not find a version that satisfies")


def test_python_without_pip(tmp_path, monkeypatch):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(ForkError) as raised:
        PIP("sglang==0.5.23", tmp_path)
    assert "has no pip, which fetches upstream's wheel" in one_line(raised)


def test_cache_folder_follows_xdg(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert upstream.cache_folder() == Path("/some/where/sglang-ddtree")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert upstream.cache_folder() == Path.home() / ".cache" / "sglang-ddtree"

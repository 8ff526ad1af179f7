# SPDX-License-Identifier: Apache-2.0
"""Fetches upstream's wheel once, checks it against the pinned hash each time, and reads files from it."""

from __future__ import annotations

import csv
import errno
import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from fork.config import Config
from fork.errors import ForkError
from fork.locking import locked

_NETWORK_SIGNS = (
    "NewConnectionError",
    "name resolution",
    "ConnectTimeout",
    "ReadTimeout",
    "Connection refused",
    "ProxyError",
    "Network is unreachable",
    "SSLError",
)


class UpstreamWheel(Mapping[str, bytes]):
    """The files of a wheel by path. Folder entries do not count."""

    def __init__(self, path: Path, version: str, sha256: str):
        self.path, self.version, self.sha256 = path, version, sha256
        try:
            self.zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise ForkError(f"{path}: not a readable wheel: {error}") from error
        self._infos = {info.filename: info for info in self.zip.infolist() if not info.is_dir()}

    def __getitem__(self, file: str) -> bytes:
        return self.zip.read(self._infos[file])

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def record(self) -> dict[str, tuple[str, str]]:
        """The hash and the size of each file, as the wheel's RECORD has them."""
        rows = csv.reader(self[f"{self.dist_info}/RECORD"].decode().splitlines())
        return {file: (digest, size) for file, digest, size in rows}

    @cached_property
    def dist_info(self) -> str:
        return next(file.partition("/")[0] for file in self if file.endswith(".dist-info/WHEEL"))


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sglang-ddtree"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(config: Config, version: str | None = None) -> UpstreamWheel:
    """The wheel of ``version`` (the pinned release by default) that fits this interpreter and machine.

    Raises ForkError, one line, when the release is not pinned, no wheel of it fits, it cannot be had, or it is not the
    pinned file.
    """
    version = version or config.version
    if version not in config.hashes:
        raise ForkError(
            f"upstream.toml has no hashes of {config.name} {version}; add what `python -m fork pin {version}` prints"
        )
    file = _fitting(config, version)
    expected = config.hashes[version][file]
    folder = cache_folder()
    path = folder / file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock", "another build is fetching upstream's wheel"):
            if not path.exists() or sha256_of(path) != expected:
                _download(config, version, file, expected, path)
    except OSError as error:
        raise disk_error(
            error, folder, "set XDG_CACHE_HOME to a folder that is writable and has 100 MB free"
        ) from error
    return UpstreamWheel(path, version, expected)


def _fitting(config: Config, version: str) -> str:
    tags = set(sys_tags())
    for file in config.hashes[version]:
        try:
            if tags & parse_wheel_filename(file)[3]:
                return file
        except InvalidWheelFilename as error:
            raise ForkError(f"upstream.toml: {file} is not a wheel's name") from error
    pythons = sorted({tag.interpreter for file in config.hashes[version] for tag in parse_wheel_filename(file)[3]})
    here = (
        f"Python {platform.python_version()} on {sys.platform} {platform.machine()} ({' '.join(platform.libc_ver())})"
    )
    raise ForkError(
        f"{config.name} {version} has no wheel for {here}; "
        f"it needs {', '.join(pythons)} on Linux x86_64 or aarch64 with glibc 2.34 or newer"
    )


def _download(config: Config, version: str, file: str, expected: str, path: Path) -> None:
    print(f"fetching {config.name} {version} (39 MB)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as folder:
        pip_download(f"{config.name}=={version}", Path(folder))
        fetched = Path(folder) / file
        if not fetched.exists():
            raise ForkError(
                f"the registry gave {', '.join(os.listdir(folder)) or 'nothing'}, upstream.toml pins {file}"
            )
        actual = sha256_of(fetched)
        if actual != expected:
            size = fetched.stat().st_size
            raise ForkError(
                f"{file}: wrong sha256: {actual} ({size} bytes), upstream.toml pins {expected}; "
                "it is truncated or not upstream's, and was not kept"
            )
        os.replace(fetched, path)


def pip_download(requirement: str, folder: Path) -> None:
    """Fetches the wheel of ``requirement`` for this interpreter into ``folder``, without dependencies."""
    run_pip(requirement, "download", "--no-cache-dir", "--dest", str(folder))


def run_pip(requirement: str, command: str, *options: str) -> str:
    """What pip says on its standard output, run with the user's own configuration: wheels only, no dependencies.

    Raises ForkError, one line, with the remedy where there is one.
    """
    line = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check"]
    line += ["--retries", "2", "--timeout", "30", "--no-deps", "--only-binary", ":all:", *options, requirement]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    said = done.stdout + done.stderr
    if "No module named pip" in said:
        raise ForkError(f"{sys.executable} has no pip, which fetches upstream's wheel; `python -m ensurepip` brings it")
    if "No space left" in said or "Disk quota" in said:
        raise ForkError(f"no space left for {requirement} in {tempfile.gettempdir()} or {cache_folder()}")
    if any(sign in said for sign in _NETWORK_SIGNS):
        raise ForkError(
            f"{requirement} cannot be fetched: no network, or the registry that pip is set to does not answer"
        )
    errors = [
        re.sub(r"from versions: .*, (?=.*, )", "newest: ", line) for line in said.splitlines() if line[:6] == "ERROR:"
    ]
    raise ForkError(
        f"{requirement} cannot be fetched: {errors[0][6:].strip() if errors else said.strip()[-300:] or 'pip failed'}"
    )


def disk_error(error: OSError, folder: Path, remedy: str) -> ForkError:
    if error.errno == errno.ENOSPC:
        return ForkError(f"{folder}: the disk is full; {remedy}")
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return ForkError(f"{folder}: not writable; {remedy}")
    return ForkError(f"{folder}: {error.strerror or error}; {remedy}")

# SPDX-License-Identifier: Apache-2.0
"""Hashes of a release that is not pinned yet: the first step to the next upstream."""

from __future__ import annotations

import json
import tempfile

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from fork.config import Config
from fork.errors import ForkError
from fork.upstream import run_pip

_PYTHONS = ("3.11", "3.12", "3.13")
_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_34_aarch64")


def hashes(config: Config, version: str) -> dict[str, str]:
    """sha256 by file name of each wheel of ``version``, as the registry states it; a build checks what it fetches.

    Compare them with what upstream publishes.
    """
    found: dict[str, str] = {}
    missing: ForkError | None = None
    for python in _PYTHONS:
        for platform in _PLATFORMS:
            try:
                file, digest = _stated(f"{config.name}=={version}", python, platform)
            except ForkError as error:
                missing = error
            else:
                found[file] = digest
    if not found:
        raise missing or ForkError(f"{config.name} {version} has no wheels")
    return found


def newest(config: Config) -> str | None:
    """The newest release that is newer than all that upstream.toml knows; pre-releases do not count."""
    known = max(config.hashes, key=Version)
    try:
        file, _ = _stated(f"{config.name}>{known}", _PYTHONS[0], _PLATFORMS[0])
    except ForkError as error:
        if "Could not find a version" in str(error):
            return None
        raise
    return str(parse_wheel_filename(file)[1])


def table(version: str, files: dict[str, str]) -> str:
    """The table for ``upstream.toml``."""
    return "\n".join([f'[sha256."{version}"]', *(f'"{file}" = "{digest}"' for file, digest in files.items())])


def _stated(requirement: str, python: str, platform: str) -> tuple[str, str]:
    """The wheel that pip would take on such a machine: its name and hash, from the registry's index alone."""
    with tempfile.TemporaryDirectory() as target:
        options = ["--python-version", python, "--platform", platform, "--target", target]
        said = run_pip(requirement, "install", "--dry-run", "--ignore-installed", "--report", "-", *options)
    (item,) = json.loads(said[said.index("{") :])["install"]
    info = item["download_info"]
    file = str(info["url"]).rpartition("/")[2].partition("#")[0]
    digest = info.get("archive_info", {}).get("hashes", {}).get("sha256")
    if not digest:
        raise ForkError(f"the registry states no sha256 of {file}")
    return file, str(digest)

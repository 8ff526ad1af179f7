# SPDX-License-Identifier: Apache-2.0
"""Hashes of a release that is not pinned yet: the first step to the next upstream."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fork.config import Config
from fork.errors import ForkError
from fork.upstream import pip_download, sha256_of

_PYTHONS = ("3.11", "3.12", "3.13")
_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_34_aarch64")


def hashes(config: Config, version: str) -> str:
    """The table for ``upstream.toml``, with each wheel of ``version`` that the registry has.

    Compare it with what upstream publishes.
    """
    lines = [f'[sha256."{version}"]']
    missing: ForkError | None = None
    with tempfile.TemporaryDirectory() as folder:
        for python in _PYTHONS:
            for platform in _PLATFORMS:
                try:
                    pip_download(
                        f"{config.name}=={version}", Path(folder), "--python-version", python, "--platform", platform
                    )
                except ForkError as error:
                    missing = error
        lines += [f'"{path.name}" = "{sha256_of(path)}"' for path in sorted(Path(folder).iterdir())]
    if len(lines) == 1:
        raise missing or ForkError(f"{config.name} {version} has no wheels")
    return "\n".join(lines)

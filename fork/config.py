# SPDX-License-Identifier: Apache-2.0
"""Reads ``upstream.toml``: which release is carried, what its wheels hash to, and what an installation needs."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fork.errors import ForkError

ROOT = Path(__file__).resolve().parent.parent
#: Names a release in place of the pinned one, also for `pip install .` and the tests.
UPSTREAM_VARIABLE = "FORK_UPSTREAM"


@dataclass(frozen=True)
class AddedTree:
    """A folder of ours whose files go into the wheel under ``target``."""

    source: Path
    target: str


@dataclass(frozen=True)
class Watch:
    """Words of upstream's code: a statement below ``under`` that has ``at_least`` of them may concern us."""

    name: str
    words: tuple[str, ...]
    at_least: int
    under: str

    @cached_property
    def pattern(self) -> re.Pattern[bytes]:
        return re.compile(rb"\b(?:%s)\b" % b"|".join(re.escape(word.encode()) for word in self.words))


@dataclass(frozen=True)
class Config:
    root: Path
    name: str
    version: str
    """The release that is carried: the pinned one, unless the user names another."""
    pinned: str
    supported: tuple[str, ...]
    """Releases, the oldest first, on which everything must work."""
    revision: int
    hashes: dict[str, dict[str, str]]
    """sha256 of each wheel file, by release and file name."""
    trees: tuple[AddedTree, ...]
    scripts: dict[str, str]
    """Commands of ours: what each runs, as ``module:function``."""
    base_requires: tuple[str, ...]
    """What runs on a CPU needs; a name alone takes the range that upstream gives it."""
    cpu_pins: tuple[str, ...]
    kernel: str
    """The package of upstream's own list that brings its GPU kernels."""

    watches: tuple[Watch, ...]
    absent: dict[str, str]
    """Symbols that an older supported release lacks, with the reason why that does no harm."""

    @property
    def fork_version(self) -> str:
        return f"{self.version}+ddtree.{self.revision}"

    @property
    def package(self) -> str:
        """The import package of upstream."""
        return self.name.replace("-", "_")

    def at(self, version: str) -> Config:
        """The same fork carried by another release."""
        return replace(self, version=version)

    @property
    def patches(self) -> Path:
        return self.root / "patches"


def load(root: Path = ROOT) -> Config:
    path = root / "upstream.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ForkError(f"{path}: cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ForkError(f"{path}: not valid TOML: {error}") from error
    try:
        config = _config(root, data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ForkError(f"{path}: a key is missing or has the wrong type: {error}") from error
    return config.at(os.environ.get(UPSTREAM_VARIABLE) or config.pinned)


def _config(root: Path, data: dict[str, Any]) -> Config:
    upstream, flavour = data["upstream"], data["flavour"]
    return Config(
        root=root,
        name=upstream["name"],
        version=upstream["version"],
        pinned=upstream["version"],
        supported=tuple(upstream["supported"]),
        revision=int(upstream["revision"]),
        hashes={version: dict(files) for version, files in data["sha256"].items()},
        trees=tuple(AddedTree(root / tree["from"], tree["to"].rstrip("/")) for tree in data["added"]),
        scripts=dict(data.get("scripts", {})),
        base_requires=tuple(flavour["cpu"]["requires"]),
        cpu_pins=tuple(flavour["cpu"]["pins"]),
        kernel=flavour["cuda"]["kernel"],
        watches=tuple(
            Watch(watch["name"], tuple(watch["words"]), int(watch.get("at_least", 1)), watch["under"])
            for watch in data.get("watch", ())
        ),
        absent=dict(data.get("absent", {})),
    )

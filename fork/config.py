# SPDX-License-Identifier: Apache-2.0
"""Reads ``upstream.toml``: which release is carried, what its wheels hash to, and what an installation needs."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fork.errors import ForkError

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class AddedTree:
    """A folder of ours whose files go into the wheel under ``target``."""

    source: Path
    target: str


@dataclass(frozen=True)
class Config:
    root: Path
    name: str
    version: str
    revision: int
    hashes: dict[str, dict[str, str]]
    """sha256 of each wheel file, by release and file name."""
    trees: tuple[AddedTree, ...]
    scripts: dict[str, str]
    """Commands of ours: what each runs, as ``module:function``."""
    base_requires: tuple[str, ...]
    cpu_pins: tuple[str, ...]
    kernel: str
    """The requirement of upstream's own list that brings its GPU kernels."""

    @property
    def fork_version(self) -> str:
        return f"{self.version}+ddtree.{self.revision}"

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
        return _config(root, data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ForkError(f"{path}: a key is missing or has the wrong type: {error}") from error


def _config(root: Path, data: dict[str, Any]) -> Config:
    upstream, flavour = data["upstream"], data["flavour"]
    return Config(
        root=root,
        name=upstream["name"],
        version=upstream["version"],
        revision=int(upstream["revision"]),
        hashes={version: dict(files) for version, files in data["sha256"].items()},
        trees=tuple(AddedTree(root / tree["from"], tree["to"].rstrip("/")) for tree in data["added"]),
        scripts=dict(data.get("scripts", {})),
        base_requires=tuple(flavour["cpu"]["requires"]),
        cpu_pins=tuple(flavour["cpu"]["pins"]),
        kernel=flavour["cuda"]["kernel"],
    )

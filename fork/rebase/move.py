# SPDX-License-Identifier: Apache-2.0
"""Moves the fork to a release: upstream.toml is changed once the tests have passed in a copy with an environment of its
own. A failure on the way leaves the checkout as it was, unless the user wants it all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fork import pin
from fork.config import UPSTREAM_VARIABLE, Config
from fork.errors import ForkError

LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "__pycache__", ".*_cache", "*.so")
_TEXT = (".py", ".toml", ".md", ".yml", ".yaml", ".cfg", ".txt", ".mk", "Makefile", "Dockerfile")


def with_hashes(config: Config, version: str) -> Config:
    """The configuration with the hashes of a release, which the registry is asked for if they are not there."""
    if version in config.hashes:
        return config
    print(f"{version} is not in upstream.toml; asking the registry for its hashes", file=sys.stderr)
    return replace(config, hashes={version: pin.hashes(config, version), **config.hashes})


def written(text: str, version: str, files: dict[str, str]) -> str:
    """upstream.toml with ``version`` pinned and supported, revision 1, and the hashes of its wheels. Comments stay."""
    try:
        import tomlkit
    except ModuleNotFoundError as error:
        raise ForkError(
            "tomlkit is missing, which changes upstream.toml; `pip install -r fork/requirements.txt`"
        ) from error
    document = tomlkit.parse(text)
    upstream = document["upstream"]
    assert isinstance(upstream, dict)
    upstream["version"] = version
    upstream["revision"] = 1
    supported = upstream["supported"]
    if version not in supported:
        supported.append(version)
    hashes = document["sha256"]
    assert isinstance(hashes, dict)
    if version not in hashes:
        hashes[version] = dict(files)
    return tomlkit.dumps(document)


def try_out(config: Config, text: str, tests: str) -> tuple[bool, Path]:
    """Whether the tests pass in a copy of the checkout with ``text`` as its upstream.toml, and where the copy is.

    ``tests`` is what ``make test TESTS=`` takes; empty for those that it runs by itself.
    """
    copy = config.root / "build" / "rebase" / config.version
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(config.root, copy, ignore=LEFT_OUT, symlinks=True)
    (copy / "upstream.toml").write_text(text, encoding="utf-8")
    hidden = (UPSTREAM_VARIABLE, "UPSTREAM", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "VIRTUAL_ENV", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    command = ["make", "test", f"PYTHON={base if base.exists() else sys.executable}"]
    command += [f"TESTS={tests}"] if tests else []
    print(f"testing {config.name} {config.version} in {copy}, with a fresh .venv", file=sys.stderr, flush=True)
    return subprocess.run(command, cwd=copy, env=environment, check=False).returncode == 0, copy


def write(config: Config, text: str) -> None:
    path = config.root / "upstream.toml"
    fresh = path.with_suffix(".toml.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def still_named(root: Path, version: str) -> Iterator[str]:
    """``file:line`` of what else names a release, for the user to look at."""
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        hidden = any(part.startswith(".") or part in ("build", "dist", "models") for part in relative.parts)
        if hidden or not path.is_file() or not path.name.endswith(_TEXT) or relative.name == "upstream.toml":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if version in line and "patches/" not in str(relative):
                yield f"{relative}:{number}"

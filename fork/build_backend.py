# SPDX-License-Identifier: Apache-2.0
"""PEP 517 and 660: ``pip install .`` gives the fork's wheel, ``pip install -e .`` one in which an edit of an
added file takes effect at once."""

from __future__ import annotations

import io
import sys
import tarfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fork import config as configuration
from fork import editable, upstream, wheel
from fork.errors import ForkError

_Settings = Mapping[str, Any] | None
_Result = TypeVar("_Result")

_SDIST = ("fork", "patches", "upstream.toml", "pyproject.toml", "LICENSE", "NOTICE", "README.md")


def _plainly(function: Callable[[], _Result]) -> _Result:
    """pip shows a backend's traceback; a user needs the one line."""
    try:
        return function()
    except ForkError as error:
        print(f"fork: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception:
        traceback.print_exc()
        raise


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    return []


get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: _Settings = None) -> str:
    def prepare() -> str:
        config = configuration.load()
        source = upstream.fetch(config)
        files = wheel.dist_info_files(config, source)
        for file, content in files.items():
            path = Path(metadata_directory) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return wheel.dist_info(config)

    return _plainly(prepare)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None) -> str:
    def build() -> str:
        config = configuration.load()
        source = upstream.fetch(config)
        return wheel.build(config, source, wheel.make_tree(config, source), Path(wheel_directory)).name

    return _plainly(build)


def build_editable(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    def build() -> str:
        config = configuration.load()
        source = upstream.fetch(config)
        return editable.build(config, source, wheel.make_tree(config, source), Path(wheel_directory)).name

    return _plainly(build)


def build_sdist(sdist_directory: str, config_settings: _Settings = None) -> str:
    """What a build needs of this repository; upstream's wheel is fetched when the sdist is built."""

    def build() -> str:
        config = configuration.load()
        base = f"{config.name}-{config.fork_version}"
        metadata = wheel.dist_info_files(config, upstream.fetch(config))[f"{wheel.dist_info(config)}/METADATA"]
        sources = [config.root / name for name in _SDIST]
        sources += [tree.source for tree in config.trees if not any(map(tree.source.is_relative_to, sources))]
        with tarfile.open(Path(sdist_directory) / f"{base}.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
            for path in sources:
                if path.exists():
                    archive.add(path, f"{base}/{path.relative_to(config.root)}", filter=_without_caches)
            info = tarfile.TarInfo(f"{base}/PKG-INFO")
            info.size = len(metadata)
            archive.addfile(info, io.BytesIO(metadata))
        return f"{base}.tar.gz"

    return _plainly(build)


def _without_caches(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in info.name else info

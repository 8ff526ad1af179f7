# SPDX-License-Identifier: Apache-2.0
"""Writes the fork's wheel: upstream's files, edited and added ones, metadata. The same inputs give the same bytes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fork import manifest, metadata
from fork.apply import Tree, apply_series, read_added
from fork.archive import WheelWriter
from fork.carried import intact
from fork.config import Config
from fork.errors import ForkError
from fork.patches import load_series
from fork.surface import table
from fork.upstream import UpstreamWheel, disk_error

_NOTICES = ("NOTICE",)


def make_tree(config: Config, upstream: UpstreamWheel) -> Tree:
    """The whole effect on upstream. Raises the first error of the series."""
    tree = apply_series(upstream, load_series(config.patches), upstream.version)
    if tree.errors:
        raise tree.errors[0] if len(tree.errors) == 1 else ForkError("\n".join(map(str, tree.errors)))
    tree.added = read_added(config, upstream)
    return tree


def dist_info(config: Config) -> str:
    return f"{config.name}-{config.fork_version}.dist-info"


def dist_info_files(config: Config, upstream: UpstreamWheel) -> dict[str, bytes]:
    """The fork's dist-info by path in the wheel, upstream's licences and entry points among it; RECORD aside."""
    ours = dist_info(config)
    files = {
        f"{ours}/{file.removeprefix(f'{upstream.dist_info}/')}": upstream[file]
        for file in upstream
        if file.startswith(f"{upstream.dist_info}/")
    }
    del files[f"{ours}/RECORD"]
    files |= {f"{ours}/licenses/{name}": (config.root / name).read_text("utf-8").encode() for name in _NOTICES}
    files[f"{ours}/METADATA"] = metadata.rewrite(files[f"{ours}/METADATA"].decode(), config, _NOTICES).encode()
    points = files.get(f"{ours}/entry_points.txt", b"").decode()
    files[f"{ours}/entry_points.txt"] = metadata.with_scripts(points, config).encode()
    files[f"{ours}/WHEEL"] = _wheel_file(files[f"{ours}/WHEEL"].decode())
    return files


def package_files(config: Config, upstream: UpstreamWheel, tree: Tree) -> dict[str, bytes]:
    """What the fork brings to the package itself: edited and added files, the manifest and the table of symbols."""
    return {
        **tree.edited,
        **tree.added,
        manifest.MANIFEST: manifest.make(config, upstream, tree),
        f"{config.package}/{intact.TABLE}": table.make(config, upstream, tree),
    }


def wheel_name(config: Config, upstream: UpstreamWheel) -> str:
    return upstream.path.name.replace(f"-{upstream.version}-", f"-{config.fork_version}-", 1)


def build(config: Config, upstream: UpstreamWheel, tree: Tree, folder: Path) -> Path:
    """Writes the wheel into ``folder`` and returns its path."""
    ours = {**package_files(config, upstream, tree), **dist_info_files(config, upstream)}
    return write(folder / wheel_name(config, upstream), ours, dist_info(config), upstream)


def make_folder(folder: Path) -> None:
    """Makes the folder of a wheel, before the work is done that would be lost if it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, folder, "choose another folder with --out") from error


def write(target: Path, ours: dict[str, bytes], info: str, upstream: UpstreamWheel | None = None) -> Path:
    """Writes a wheel of ``ours`` and of all else that ``upstream`` has in its package.

    An interrupted build leaves none, a finished one replaces what was there in one step.
    """
    make_folder(target.parent)
    try:
        with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as scratch:
            unfinished = Path(scratch) / target.name
            _write(unfinished, ours, info, upstream)
            os.replace(unfinished, target)
    except OSError as error:
        raise disk_error(error, target.parent, "choose another folder with --out") from error
    return target


def _write(path: Path, ours: dict[str, bytes], info: str, upstream: UpstreamWheel | None) -> None:
    recorded = upstream.record() if upstream else {}
    theirs = [file for file in upstream or () if upstream and not file.startswith(f"{upstream.dist_info}/")]
    # dist-info last, as the wheel specification recommends.
    files = sorted({*ours, *theirs}, key=lambda file: (file.startswith(f"{info}/"), file))
    with WheelWriter(path, info) as writer:
        for file in files:
            if file in ours or upstream is None:
                writer.add(file, ours[file])
            else:
                writer.copy(upstream.zip, file, recorded[file])


def _wheel_file(theirs: str) -> bytes:
    """Upstream's tags with our name as the generator."""
    lines = [
        "Generator: sglang-ddtree fork" if line.startswith("Generator:") else line
        for line in theirs.strip().splitlines()
    ]
    return ("\n".join(lines) + "\n").encode()

# SPDX-License-Identifier: Apache-2.0
"""A development install: the patched tree under ``build/``, our added files as links into the checkout, and a
``.pth`` that leads there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fork import wheel
from fork.apply import Tree, added_paths
from fork.config import Config
from fork.locking import locked
from fork.upstream import UpstreamWheel, disk_error

_PTH = "__editable__.sglang_ddtree.pth"


def build(config: Config, upstream: UpstreamWheel, tree: Tree, folder: Path) -> Path:
    """Lays the tree out and writes the wheel that points to it into ``folder``.

    A patch that changes needs another run, an added file not.
    """
    target = config.root / "build" / "editable"
    lay_out(config, upstream, tree, target)
    info = wheel.dist_info(config)
    files = {**wheel.dist_info_files(config, upstream), _PTH: f"{target}\n".encode()}
    return wheel.write(folder / wheel.wheel_name(config, upstream), files, info)


def lay_out(config: Config, upstream: UpstreamWheel, tree: Tree, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent / ".lock", "another build is laying out the tree"):
            _lay_out(config, upstream, tree, target)
    except OSError as error:
        raise disk_error(error, target.parent, "an editable install is laid out there") from error


def _lay_out(config: Config, upstream: UpstreamWheel, tree: Tree, target: Path) -> None:
    fresh = target.with_name(f".{target.name}-new")
    shutil.rmtree(fresh, ignore_errors=True)
    ours = wheel.package_files(config, upstream, tree)
    folders = {str(parent) for file in upstream for parent in Path(file).parents}
    for file in upstream:
        if not file.startswith(f"{upstream.dist_info}/") and file not in ours:
            _put(fresh / file, upstream[file])
    for file, content in ours.items():
        if file not in tree.added:
            _put(fresh / file, content)
    for file, source in added_paths(config).items():
        _link(fresh, file, source, folders)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(fresh, target)


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _link(root: Path, file: str, source: Path, folders: set[str]) -> None:
    """Links the outermost folder that upstream has not, so that files made later are seen too; else the file."""
    path = Path(file)
    while str(path.parent) not in folders:
        path, source = path.parent, source.parent
    link = root / path
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source)

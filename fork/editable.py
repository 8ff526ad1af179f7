# SPDX-License-Identifier: Apache-2.0
"""A development install: the patched tree under ``build/``, our added files as links into the checkout, and a
``.pth`` that leads there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePath

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
    for file in upstream:
        if not file.startswith(f"{upstream.dist_info}/") and file not in ours:
            _put(fresh / file, upstream[file])
    for file, content in ours.items():
        if file not in tree.added:
            _put(fresh / file, content)
    for link, source in _links(config, upstream).items():
        (fresh / link).parent.mkdir(parents=True, exist_ok=True)
        (fresh / link).symlink_to(source)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(fresh, target)


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _links(config: Config, upstream: UpstreamWheel) -> dict[PurePath, Path]:
    """The links that bring every added file: of a whole folder where it is one of ours only, so that new files are seen
    too; else of the file."""
    taken = {parent for file in upstream for parent in PurePath(file).parents}
    sources: dict[PurePath, set[Path]] = {}
    added = {PurePath(file): source for file, source in added_paths(config).items()}
    for file, source in added.items():
        (tree,) = (tree for tree in config.trees if source.is_relative_to(tree.source))
        for folder, its_source in zip(file.parents, source.parents, strict=False):
            sources.setdefault(folder, set()).add(its_source)
            if not folder.is_relative_to(tree.target):
                taken.add(folder)
    whole = {folder: next(iter(its)) for folder, its in sources.items() if len(its) == 1 and folder not in taken}
    links: dict[PurePath, Path] = {}
    for file, source in added.items():
        outermost = next((folder for folder in reversed(file.parents) if folder in whole), None)
        links[outermost or file] = whole[outermost] if outermost else source
    return links

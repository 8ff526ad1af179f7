# SPDX-License-Identifier: Apache-2.0
"""Writes the fork's wheel: upstream's files, edited and added ones, metadata. The same inputs give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import zipfile
from pathlib import Path

from fork import manifest, metadata
from fork.apply import Tree, apply_series, read_added
from fork.config import Config
from fork.errors import ForkError
from fork.patches import load_series
from fork.upstream import UpstreamWheel, disk_error

#: A zip cannot say less; the date of upstream's build would change with each of its wheels for no gain.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_NOTICES = ("NOTICE",)


def make_tree(config: Config, upstream: UpstreamWheel) -> Tree:
    """The whole effect on upstream. Raises the first error of the series."""
    tree = apply_series(upstream, load_series(config.patches), upstream.version)
    if tree.errors:
        raise tree.errors[0] if len(tree.errors) == 1 else ForkError("\n".join(map(str, tree.errors)))
    tree.added = read_added(config, upstream)
    return tree


def changed_files(config: Config, upstream: UpstreamWheel, tree: Tree) -> dict[str, bytes]:
    """Every file of the wheel that upstream's has not, or not so; RECORD aside."""
    dist_info = f"{config.name}-{config.fork_version}.dist-info"
    notices = {f"{dist_info}/licenses/{name}": (config.root / name).read_bytes() for name in _NOTICES}
    theirs = upstream[f"{upstream.dist_info}/METADATA"].decode()
    return {
        **tree.edited,
        **tree.added,
        manifest.MANIFEST: manifest.make(config, upstream, tree),
        **notices,
        f"{dist_info}/METADATA": metadata.rewrite(theirs, config, _NOTICES).encode(),
        f"{dist_info}/WHEEL": _wheel_file(upstream[f"{upstream.dist_info}/WHEEL"].decode()),
    }


def wheel_name(config: Config, upstream: UpstreamWheel) -> str:
    return upstream.path.name.replace(f"-{upstream.version}-", f"-{config.fork_version}-", 1)


def build(config: Config, upstream: UpstreamWheel, tree: Tree, folder: Path) -> Path:
    """Writes the wheel into ``folder`` and returns its path. An interrupted build leaves no wheel there, a finished one replaces the old."""
    changed = changed_files(config, upstream, tree)
    target = folder / wheel_name(config, upstream)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch:
            unfinished = Path(scratch) / target.name
            _write(unfinished, config, upstream, changed)
            os.replace(unfinished, target)
    except OSError as error:
        raise disk_error(error, folder, "choose another folder with --out") from error
    return target


def _write(path: Path, config: Config, upstream: UpstreamWheel, changed: dict[str, bytes]) -> None:
    dist_info = f"{config.name}-{config.fork_version}.dist-info"
    record_path = f"{dist_info}/RECORD"
    sources = {_moved(file, upstream.dist_info, dist_info): file for file in upstream}
    del sources[record_path]
    # dist-info last, as the wheel specification recommends.
    files = sorted({*sources, *changed}, key=lambda file: (file.startswith(f"{dist_info}/"), file))
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as wheel:
        for file in files:
            content = changed[file] if file in changed else upstream[sources[file]]
            executable = file in sources and upstream.info(sources[file]).external_attr >> 16 & 0o111
            _add(wheel, file, content, 0o755 if executable else 0o644)
            record.append(f"{_quoted(file)},sha256={_record_hash(content)},{len(content)}")
        _add(wheel, record_path, "".join(f"{line}\n" for line in [*record, f"{record_path},,"]).encode(), 0o644)


def _moved(file: str, old: str, new: str) -> str:
    return f"{new}/{file.removeprefix(f'{old}/')}" if file.startswith(f"{old}/") else file


def _add(wheel: zipfile.ZipFile, file: str, content: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(file, _EPOCH)
    info.create_system = 3
    info.external_attr = (0o100000 | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(info, content, compresslevel=6)


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _quoted(file: str) -> str:
    return f'"{file}"' if "," in file else file


def _wheel_file(theirs: str) -> bytes:
    """Upstream's tags with our name as the generator."""
    lines = ["Generator: sglang-ddtree fork" if line.startswith("Generator:") else line for line in theirs.strip().splitlines()]
    return ("\n".join(lines) + "\n").encode()

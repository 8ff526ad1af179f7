# SPDX-License-Identifier: Apache-2.0
"""Writes the fork's wheel: upstream's files, edited and added ones, metadata. The same inputs give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable
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
    files |= {f"{ours}/licenses/{name}": (config.root / name).read_bytes() for name in _NOTICES}
    files[f"{ours}/METADATA"] = metadata.rewrite(files[f"{ours}/METADATA"].decode(), config, _NOTICES).encode()
    files[f"{ours}/WHEEL"] = _wheel_file(files[f"{ours}/WHEEL"].decode())
    return files


def package_files(config: Config, upstream: UpstreamWheel, tree: Tree) -> dict[str, bytes]:
    """What the fork brings to the package itself: edited and added files, and the manifest."""
    return {**tree.edited, **tree.added, manifest.MANIFEST: manifest.make(config, upstream, tree)}


def wheel_name(config: Config, upstream: UpstreamWheel) -> str:
    return upstream.path.name.replace(f"-{upstream.version}-", f"-{config.fork_version}-", 1)


def build(config: Config, upstream: UpstreamWheel, tree: Tree, folder: Path) -> Path:
    """Writes the wheel into ``folder`` and returns its path."""
    ours = {**package_files(config, upstream, tree), **dist_info_files(config, upstream)}
    theirs = [file for file in upstream if not file.startswith(f"{upstream.dist_info}/") and file not in ours]

    def content(file: str) -> bytes:
        return ours[file] if file in ours else upstream[file]

    executable = {file for file in upstream if upstream.info(file).external_attr >> 16 & 0o111}
    return write(folder / wheel_name(config, upstream), {*ours, *theirs}, content, dist_info(config), executable)


def write(
    target: Path, files: Iterable[str], content: Callable[[str], bytes], info: str, executable: Collection[str] = ()
) -> Path:
    """Writes a wheel with its RECORD.

    An interrupted build leaves none, a finished one replaces what was there in one step.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as scratch:
            unfinished = Path(scratch) / target.name
            _write(unfinished, files, content, info, executable)
            os.replace(unfinished, target)
    except OSError as error:
        raise disk_error(error, target.parent, "choose another folder with --out") from error
    return target


def _write(
    path: Path, files: Iterable[str], content: Callable[[str], bytes], info: str, executable: Collection[str]
) -> None:
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        # dist-info last, as the wheel specification recommends.
        for file in sorted(files, key=lambda file: (file.startswith(f"{info}/"), file)):
            data = content(file)
            _add(archive, file, data, 0o755 if file in executable else 0o644)
            record.append(f"{_quoted(file)},sha256={_record_hash(data)},{len(data)}\n")
        _add(archive, f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode(), 0o644)


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
    lines = [
        "Generator: sglang-ddtree fork" if line.startswith("Generator:") else line
        for line in theirs.strip().splitlines()
    ]
    return ("\n".join(lines) + "\n").encode()

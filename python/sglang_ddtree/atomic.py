# SPDX-License-Identifier: Apache-2.0
"""Files that are whole at every moment, whatever kills the writer and however full the disk is."""

from __future__ import annotations

import errno
import glob
import os
from pathlib import Path

# One name a target, so that what a kill left behind is replaced by the next write and not collected.
_SUFFIX = ".sglang-ddtree-new"


def write(path: Path, content: bytes, *, like: Path | None = None, mode: int = 0o644) -> None:
    """Replace ``path`` with ``content`` in one step, on the disk before it returns.

    Args:
        path: the file; its folder must exist.
        content: all of it.
        like: a file whose owner and permissions the new one gets.
        mode: permissions where ``like`` is not given.

    Raises:
        OSError: nothing has changed.
    """
    status = like.stat() if like is not None else None
    waiting = path.with_name(f".{path.name}{_SUFFIX}")
    waiting.unlink(missing_ok=True)
    permissions = status.st_mode & 0o7777 if status else mode
    try:
        fd = _open(path.parent, waiting)
        try:
            _write_all(fd, content)
            if status and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, status.st_uid, status.st_gid)
            os.fchmod(fd, permissions)
            os.fsync(fd)
            _name(fd, waiting)
        finally:
            os.close(fd)
        replace(waiting, path)
    except OSError:
        waiting.unlink(missing_ok=True)
        raise


def replace(source: Path, target: Path) -> None:
    """Rename ``source`` over ``target``, on the disk before it returns. Takes no space."""
    os.replace(source, target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sweep(folder: Path, stem: str = "") -> None:
    """Remove what kills between two steps of earlier writes left of files whose name begins with ``stem``."""
    for left in folder.glob(f".{glob.escape(stem)}*{_SUFFIX}"):
        left.unlink(missing_ok=True)


def _open(folder: Path, waiting: Path) -> int:
    """A file without a name where the file system has such: a kill during the write then leaves nothing at all."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    return os.open(waiting, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)


def _name(fd: int, waiting: Path) -> None:
    if waiting.exists():
        return
    # Relative to a folder, since only then does Python follow the link that stands for the open file.
    descriptors = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.link(str(fd), waiting, src_dir_fd=descriptors, follow_symlinks=True)
    finally:
        os.close(descriptors)


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]

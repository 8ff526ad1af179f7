# SPDX-License-Identifier: Apache-2.0
"""One writer at a time: builds may run side by side in one checkout, or share the cache."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Holds a lock that the kernel drops with the process, so an interrupted build leaves none behind."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{waiting}, waiting", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

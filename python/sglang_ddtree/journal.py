# SPDX-License-Identifier: Apache-2.0
"""The records of all cutovers: what was there before stands on the disk before anything is changed."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sglang_ddtree import atomic
from sglang_ddtree.errors import Refused

FORMAT = 1
RUNNING, DONE, BACK, STUCK, REFUSED, FORGOTTEN = (
    "running",
    "done",
    "rolled back",
    "rollback failed",
    "refused",
    "forgotten",
)


class Record:
    """One cutover, as a JSON file that is whole after every change."""

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self.path, self.data = path, data

    @property
    def unfinished(self) -> bool:
        """Whether its process ended with the service changed and neither kept nor brought back."""
        return self.data["status"] in (RUNNING, STUCK) and bool(self.data["changed"])

    def save(self, **changes: Any) -> None:
        """Note ``changes``. Raises OSError; the file then holds what it held before."""
        self.data |= changes
        atomic.write(self.path, (json.dumps(self.data, indent=1) + "\n").encode(), mode=0o640)

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Note that a step begins, and how it ended; what it puts into the dictionary is noted with it."""
        entry: dict[str, Any] = {"step": name, "began": now()}
        self.data["steps"].append(entry)
        self.save()
        began = time.monotonic()
        try:
            yield entry
            entry["ok"] = True
        except BaseException as error:
            entry["ok"] = False
            entry["error"] = str(error) or type(error).__name__
            raise
        finally:
            entry["seconds"] = round(time.monotonic() - began, 3)
        self.save()


class Journal:
    """The folder of the records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against a second cutover; the lock ends with the process.

        Raises:
            Refused: another process holds it, or the folder cannot be written to.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("a+")
        except OSError as error:
            raise Refused(f"{self.folder} cannot be written to ({error.strerror}); give another --state-dir") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                lock.seek(0)
                holder = lock.read().strip() or "another process"
                raise Refused(f"a cutover or rollback is under way here: {holder}") from error
            lock.seek(0)
            lock.truncate()
            lock.write(f"process {os.getpid()} since {now()}\n")
            lock.flush()
            atomic.sweep(self.folder)
            yield

    def begin(self, **facts: Any) -> Record:
        """A new record. Raises Refused if it cannot be written: a cutover without one could not be undone."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        data = {
            "format": FORMAT,
            "stamp": stamp,
            "status": RUNNING,
            "changed": [],
            "steps": [],
            "began": now(),
            **facts,
        }
        record = Record(self.folder / f"{stamp}.json", data)
        try:
            record.save()
        except OSError as error:
            raise Refused(f"{record.path} cannot be written ({error.strerror}); nothing was changed") from error
        return record

    def latest(self) -> Record | None:
        """The newest record; None if there is none."""
        return next(self.records(), None)

    def records(self) -> Iterator[Record]:
        """All records, the newest first; what is not one is passed over."""
        for path in sorted(self.folder.glob("*Z.json"), reverse=True):
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
                if data["format"] == FORMAT:
                    yield Record(path, data)
            except (OSError, ValueError, KeyError, TypeError):
                continue


def now() -> str:
    """The time for people and programs."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def default_folder() -> Path:
    """Where the service's records lie: of the system for root, of the user for others."""
    if os.geteuid() == 0:
        return Path("/var/lib/sglang-ddtree/cutovers")
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "sglang-ddtree" / "cutovers"

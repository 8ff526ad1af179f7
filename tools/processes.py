# SPDX-License-Identifier: Apache-2.0
"""A command as the leader of its own process group, and waiting for conditions."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

STOP_SECONDS = 30


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll ``true`` until it holds; raise TimeoutError naming ``what`` if it never does."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not after {seconds:.0f} s")
        time.sleep(0.05)


class ProcessGroup:
    """A command that leads its own process group.

    Standard error goes to ``log``, standard output to a file beside it. Stopping
    ends the group, not only the leader, so no scheduler is left behind. The leader
    gets SIGTERM when the thread that made it is gone, however it ended.
    """

    def __init__(self, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.with_suffix(".out").open("wb") as out, log.open("wb") as err:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(environ),
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - one system call, no lock is taken
            )
        self.pgid = self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status of the leader (negative: the signal that ended it); None while it runs."""
        return self._process.poll()

    def members(self) -> list[psutil.Process]:
        """Processes of the group that are alive; zombies are not."""
        self._process.poll()
        return [p for p in psutil.process_iter() if _in_group(p, self.pgid)]

    def wait(self, seconds: float | None = None) -> int:
        """Wait for the leader to end and return its exit status."""
        return self._process.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the leader alone, as a terminal's user or a supervisor might."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Keep the whole group from running until ``resume``."""
        os.killpg(self.pgid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo ``pause``."""
        os.killpg(self.pgid, signal.SIGCONT)

    def stop(self, at_once: bool = False) -> None:
        """End the group, SIGTERM first (unless ``at_once``) and SIGKILL for those that stay, and reap the leader."""
        for number in (signal.SIGKILL,) if at_once else (signal.SIGTERM, signal.SIGKILL):
            if not self.members():
                break
            with suppress(ProcessLookupError, TimeoutError):
                os.killpg(self.pgid, number)
                wait_until(lambda: not self.members(), STOP_SECONDS, "end of group")
        self._process.wait(STOP_SECONDS)

    def errors(self) -> str:
        """Everything that the group has written to standard error, its log included."""
        return self.log.read_text(errors="replace")


def _end_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that has ended and was not reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _in_group(process: psutil.Process, pgid: int) -> bool:
    try:
        return os.getpgid(process.pid) == pgid and is_alive(process)
    except ProcessLookupError:
        return False

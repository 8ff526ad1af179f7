# SPDX-License-Identifier: Apache-2.0
"""How the service is restarted: a systemd unit, or any command of the operator's."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from sglang_ddtree.errors import Failed, Refused
from sglang_ddtree.signals import held

_ASK_SECONDS = 30


class Supervisor(Protocol):
    """Something that can restart the service."""

    def restart(self, log: Path) -> None:
        """Start the service anew and return when that was ordered; raise Failed if it cannot be."""

    def gave_up(self) -> str | None:
        """Why there is no use in waiting for the service; None while there is."""

    def record(self) -> dict[str, str]:
        """What a later rollback needs to know."""


@dataclass(frozen=True)
class Unit:
    """A systemd unit."""

    name: str
    seconds: float

    def restart(self, log: Path) -> None:
        # Restarts by hand count for StartLimitBurst too; the one that brings the service back must not be one too many.
        with suppress(Refused):
            _systemctl("reset-failed", self.name)
        _run(["systemctl", "restart", self.name], self.seconds, log)

    def gave_up(self) -> str | None:
        try:
            state = _systemctl("is-active", self.name)
        except Refused:  # systemd is busy: no reason to give the service up
            return None
        return (
            f"unit {self.name} is {state}; see `journalctl -u {self.name}`" if state in ("failed", "inactive") else None
        )

    def record(self) -> dict[str, str]:
        return {"unit": self.name}

    def environment_files(self) -> list[Path]:
        """The files that the unit reads its environment from, in their order."""
        listed = _systemctl("show", "--property=EnvironmentFiles", "--value", self.name)
        return [Path(line.rpartition(" (")[0] or line) for line in listed.splitlines() if line]


@dataclass(frozen=True)
class Command:
    """A command that restarts the service, e.g. ``supervisorctl restart sglang``."""

    line: str
    seconds: float

    def restart(self, log: Path) -> None:
        _run(shlex.split(self.line), self.seconds, log)

    def gave_up(self) -> str | None:
        return None

    def record(self) -> dict[str, str]:
        return {"restart_command": self.line}


def find_unit(name: str, seconds: float) -> Unit | None:
    """The unit of this name, if systemd knows it here."""
    if shutil.which("systemctl") is None:
        return None
    return Unit(name, seconds) if _systemctl("show", "--property=LoadState", "--value", name) == "loaded" else None


def _run(command: list[str], seconds: float, log: Path) -> None:
    """Run it to its end, in a session of its own: a Ctrl-C is for this tool, which then restarts back."""
    with ExitStack() as stack:
        # Not a pipe: a server that the command leaves running would hold it open.
        out: IO[bytes] | int = subprocess.DEVNULL
        with suppress(OSError):  # a full disk is no reason not to restart
            out = stack.enter_context(log.open("ab"))
        release = stack.enter_context(held())
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )  # fmt: skip
        except OSError as error:
            raise Failed(f"`{shlex.join(command)}` cannot be run: {error.strerror}") from error
        try:
            release()
            status = process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise Failed(
                f"`{shlex.join(command)}` did not return within {seconds:.0f} s; it must start the service and return "
                f"(--restart-timeout); its output: {log}"
            ) from error
        except BaseException:
            # Two restarts at once would leave either: let this one end before the way back begins.
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    if status:
        raise Failed(f"`{shlex.join(command)}` ended with status {status}; its output: {log}")


def _systemctl(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["systemctl", *arguments], capture_output=True, text=True, check=False, timeout=_ASK_SECONDS
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"systemctl cannot be asked: {error}") from error
    return done.stdout.strip()

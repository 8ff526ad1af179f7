# SPDX-License-Identifier: Apache-2.0
"""What several commands make of their arguments."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from sglang_ddtree.errors import Refused
from sglang_ddtree.progress import Progress
from sglang_ddtree.server import Server
from sglang_ddtree.service import Service
from sglang_ddtree.supervisor import Command, Supervisor, Unit, find_unit

DEFAULT_UNIT = "sglang-ddtree.service"


def server(arguments: argparse.Namespace) -> Server:
    """The server of ``--url`` with the keys that were given."""
    admin = _key(arguments.admin_key_file, "SGLANG_DDTREE_ADMIN_KEY", "--admin-key-file")
    return Server(arguments.url, admin, _key(arguments.api_key_file, "SGLANG_DDTREE_API_KEY", "--api-key-file"))


def _key(path: Path | None, variable: str, flag: str) -> str | None:
    """A key never stands on a command line, where every user of the machine can read it."""
    if path is None:
        key, where = os.environ.get(variable, ""), variable
        if not key:
            return None
    else:
        where = f"{flag} {path}"
        try:
            key = path.read_bytes().decode("utf-8", "replace").strip()
        except OSError as error:
            raise Refused(f"{where} cannot be read: {error.strerror}") from error
        if not key:
            raise Refused(f"{where} is empty")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise Refused(f"{where} is no key: it must be one line of ASCII characters without spaces")
    return key


def supervisor(arguments: argparse.Namespace) -> Supervisor | None:
    """What restarts the service, as given or found."""
    if arguments.restart_command:
        return Command(arguments.restart_command, arguments.restart_timeout)
    unit = find_unit(arguments.unit or DEFAULT_UNIT, arguments.restart_timeout)
    if unit is None and arguments.unit:
        raise Refused(f"systemd does not know the unit {arguments.unit}")
    return unit


def environment_file(given: Path | None, restarts: Supervisor | None) -> Path | None:
    """The given file, else the last one that the unit reads: there a later assignment wins.

    Where a link leads, since the file is replaced, and whole, since a rollback may be called from another folder.
    """
    if given is None and isinstance(restarts, Unit):
        given = next(reversed(restarts.environment_files()), None)
    return given.resolve() if given is not None else None


def service(arguments: argparse.Namespace, restarts: Supervisor | None, progress: Progress) -> Service:
    """The service as the arguments describe it."""
    return Service(
        server(arguments),
        restarts,
        progress,
        health_seconds=arguments.health_timeout,
        poll_seconds=arguments.poll,
        settle_seconds=arguments.settle,
    )


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal. Raises Refused on a no, and where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused("nobody can be asked here; --yes does it without, --dry-run only shows it")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise Refused("not done")

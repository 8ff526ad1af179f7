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
        return os.environ.get(variable) or None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{flag} {path} cannot be read: {error}") from error
    if not key:
        raise Refused(f"{flag} {path} is empty")
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
    """The given file, else the last one that the unit reads: there a later assignment wins."""
    if given is not None or not isinstance(restarts, Unit):
        return given
    files = restarts.environment_files()
    return files[-1] if files else None


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

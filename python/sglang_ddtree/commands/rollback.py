# SPDX-License-Identifier: Apache-2.0
"""``sglang-ddtree rollback``."""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang_ddtree import journal, report
from sglang_ddtree.commands import common
from sglang_ddtree.cutover import go_back
from sglang_ddtree.errors import Refused
from sglang_ddtree.journal import Journal, Record
from sglang_ddtree.progress import Progress
from sglang_ddtree.signals import Signals
from sglang_ddtree.supervisor import Command, Supervisor, find_unit


def run(arguments: argparse.Namespace) -> int:
    """Undo the last cutover that left a change."""
    progress = Progress()
    diary = Journal(arguments.state_dir)
    with diary.locked():
        record = _last(diary)
        before, target = record.data["before"]["mode"], record.data["target"]
        if arguments.forget:
            record.save(status=journal.FORGOTTEN, ended=journal.now())
            progress.tell(report.text(record))
            return 0
        restarts = _supervisor(arguments, record)
        arguments.url = record.data["url"]
        service = common.service(arguments, restarts, progress)
        progress.say(f"bring {service.server.url} back from {target} to {before}: {', '.join(record.data['changed'])}")
        common.confirm("go on?", arguments.yes)
        with Signals(progress.say) as signals:
            signals.shield()
            good = go_back(record, service, _log(record.path), "rollback was asked for")
        progress.tell(report.text(record))
    return 0 if good else 3


def _last(diary: Journal) -> Record:
    """The newest cutover, which must have left a change; the ones that were refused changed nothing."""
    for record in diary.records():
        status = record.data["status"]
        if status == journal.REFUSED or not record.data["changed"]:
            continue
        if status in (journal.BACK, journal.FORGOTTEN):
            raise Refused(f"the last cutover ({record.data['began']}) is {status} already")
        return record
    raise Refused(f"there is no cutover to undo in {diary.folder}")


def _supervisor(arguments: argparse.Namespace, record: Record) -> Supervisor | None:
    """As given now, else as it was given for the cutover."""
    if arguments.unit or arguments.restart_command:
        return common.supervisor(arguments)
    known = record.data["supervisor"]
    if "restart_command" in known:
        return Command(known["restart_command"], arguments.restart_timeout)
    return find_unit(known["unit"], arguments.restart_timeout) if "unit" in known else None


def _log(path: Path) -> Path:
    return path.with_suffix(".rollback.log")

# SPDX-License-Identifier: Apache-2.0
"""``sglang-ddtree rollback``."""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang_ddtree import journal, report
from sglang_ddtree.commands import common
from sglang_ddtree.cutover import go_back
from sglang_ddtree.errors import Refused, ServerError
from sglang_ddtree.journal import Journal, Record
from sglang_ddtree.progress import Progress
from sglang_ddtree.service import Service
from sglang_ddtree.signals import Signals
from sglang_ddtree.supervisor import Command, Supervisor, find_unit
from sglang_ddtree.undo import LIVE_MODE, RESTARTED


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
        _refuse_without_key(record, service)
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
            raise Refused(
                f"the last cutover ({record.data['began']}) is {status} already; "
                "`sglang-ddtree cutover --to MODE` goes elsewhere"
            )
        return record
    raise Refused(f"there is no cutover to undo in {diary.folder} (--state-dir)")


def _refuse_without_key(record: Record, service: Service) -> None:
    """A running server is switched back with its key; a wrong one would cost a restart, or leave it as it is."""
    changed, server = record.data["changed"], service.server
    if LIVE_MODE not in changed or RESTARTED in changed or server.unhealthy():
        return
    try:
        if server.state().mode == record.data["before"]["mode"]:
            return
        if server.has_admin_key:
            server.check_admin_key()
    except ServerError as error:
        if error.status in (401, 403):
            other = ", or none and the service is restarted" if service.supervisor else ""
            raise Refused(f"{error}; the key is wrong: give the right one{other}") from error
        return
    if server.has_admin_key:
        return
    why = "no admin key is known here (SGLANG_DDTREE_ADMIN_KEY or --admin-key-file)"
    if service.supervisor is None:
        raise Refused(f"{why}, and nothing that restarts the service (--unit or --restart-command)")
    service.progress.say(f"{why}: the service is restarted, and requests in flight are lost")


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

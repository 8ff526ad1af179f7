# SPDX-License-Identifier: Apache-2.0
"""``sglang-ddtree cutover``."""

from __future__ import annotations

import argparse
from contextlib import suppress

from sglang_ddtree import atomic, journal, report
from sglang_ddtree.commands import common
from sglang_ddtree.cutover import Cutover, begin, plan, refuse_after_killed
from sglang_ddtree.errors import Failed, Interrupted
from sglang_ddtree.journal import Journal, Record
from sglang_ddtree.judge import Limits
from sglang_ddtree.progress import Progress
from sglang_ddtree.settings import MIN_SPEED_RATIO, Settings
from sglang_ddtree.supervisor import Supervisor


def run(arguments: argparse.Namespace) -> int:
    """Make a cutover, or show it with ``--dry-run``."""
    progress = Progress()
    restarts = common.supervisor(arguments)
    settings = _settings(arguments, restarts)
    service = common.service(arguments, restarts, progress)
    diary = Journal(arguments.state_dir)
    if arguments.dry_run:
        print("\n".join(plan(settings, service).text))
        return 0
    with diary.locked():
        refuse_after_killed(diary)
        intended = plan(settings, service)
        progress.say("\n".join(intended.text))
        common.confirm("go on?", arguments.yes)
        record = begin(settings, service, diary, intended)
        try:
            Cutover(settings, service, record, intended).run()
        except (Failed, Interrupted) as error:
            _tell(record, progress)
            if record.data["status"] == journal.STUCK:
                return 3
            return 130 if isinstance(error, Interrupted) else 1
        _tell(record, progress)
    return 0


def _settings(arguments: argparse.Namespace, restarts: Supervisor | None) -> Settings:
    ratio = arguments.min_speed_ratio
    return Settings(
        target=arguments.to,
        method=arguments.method,
        environment_file=common.environment_file(arguments.environment_file, restarts),
        prompts=arguments.prompts,
        tokens=arguments.tokens,
        repeats=arguments.repeats,
        answer_seconds=arguments.answer_timeout,
        watch_seconds=arguments.watch,
        limits=Limits(
            tie_nats=arguments.tie_nats,
            max_diverged=arguments.max_diverged,
            min_speed_ratio=MIN_SPEED_RATIO[arguments.to] if ratio is None else ratio,
            max_ulp=arguments.max_ulp,
            max_mean_ulp=arguments.max_mean_ulp,
            max_beyond_2_ulp=arguments.max_beyond_2_ulp,
        ),
        health_seconds=arguments.health_timeout,
        poll_seconds=arguments.poll,
        settle_seconds=arguments.settle,
    )


def _tell(record: Record, progress: Progress) -> None:
    said = report.text(record)
    progress.tell(said)
    # The record has all of it; a full disk is no reason to fail now.
    with suppress(OSError):
        atomic.write(record.path.with_suffix(".txt"), f"{said}\n".encode(), mode=0o640)

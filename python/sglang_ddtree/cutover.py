# SPDX-License-Identifier: Apache-2.0
"""The cutover: look, measure, switch, wait, measure again, decide; and back if anything fails after a change."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_ddtree import envfile, journal
from sglang_ddtree.errors import Failed, Interrupted, Refused, ServerError
from sglang_ddtree.journal import Journal, Record
from sglang_ddtree.judge import Verdict, judge, judge_validation
from sglang_ddtree.probe import Measurement, measure
from sglang_ddtree.prompts import fixed_prompts
from sglang_ddtree.report import rollback_command
from sglang_ddtree.server import SwitchState
from sglang_ddtree.service import Service
from sglang_ddtree.settings import AUTO, LIVE, RESTART, Settings
from sglang_ddtree.signals import Signals
from sglang_ddtree.supervisor import Supervisor
from sglang_ddtree.undo import ENVIRONMENT, LIVE_MODE, RESTARTED, may_be_healthy, undo


@dataclass(frozen=True)
class Plan:
    """What is there, and what will be done about it.

    Attributes:
        before: the switch's state.
        live: whether the running server is switched; else the service is restarted.
        value: what the environment file assigns at present.
        text: the plan in words, a line each.
    """

    before: SwitchState
    live: bool
    value: str | None
    text: list[str]


def plan(settings: Settings, service: Service) -> Plan:
    """Look, and decide how. Raises Refused where a cutover cannot or need not be made."""
    if trouble := service.server.unhealthy():
        raise Refused(f"the server at {service.server.url} {trouble}; a cutover starts from a healthy service (--url)")
    try:
        before = service.server.state()
        if service.server.has_admin_key:
            service.server.check_admin_key()
    except ServerError as error:
        remedy = "; the admin key is wrong" if error.status in (401, 403) else ""
        raise Refused(f"{error}{remedy}") from error
    target = settings.target
    if before.mode == "mixed":
        raise Refused("the server's ranks are in different modes; restart the service first")
    if before.mode == target and target != "validate":
        raise Refused(f"the server is in mode {target} already")
    live, why = _live(settings, service, before)
    text = [f"the server at {service.server.url} is healthy in mode {before.mode}"]
    path = settings.environment_file
    value = None
    if path is not None:
        content = _rewritable(path)
        value = envfile.value(content)
        if envfile.overriding_flag(content):
            raise Refused(f"{path} gives the server {envfile.FLAG}, which wins over {envfile.VARIABLE}: take it out")
    if not live and (missing := _missing(path, service.supervisor)):
        raise Refused(f"{why}; a restart needs {missing}")
    measured = f"{settings.prompts} prompts of {settings.tokens} tokens, {settings.repeats} times each"
    text.append(f"measure: {measured}")
    if live:
        text.append(f"switch the running server to {target}; nothing restarts")
    else:
        text.append(f"restart the service in mode {target}, since {why}; requests in flight are lost")
    text.append("measure again, compare, and go back if a limit is passed")
    if path is not None:
        text.append(
            f"{path}: {envfile.VARIABLE}={target}, so that every later start has it; its backup stays beside it"
        )
    else:
        text.append("no --environment-file: the next start of the service will have its old mode")
    return Plan(before, live, value, text)


def _live(settings: Settings, service: Service, before: SwitchState) -> tuple[bool, str]:
    """Whether the running server can be switched, and why not."""
    if settings.method == RESTART:
        return False, "--method restart"
    if not service.server.has_admin_key:
        why = "no admin key is known here (SGLANG_DDTREE_ADMIN_KEY or --admin-key-file)"
    elif not before.prepared(settings.target):
        why = f"the server was started without {settings.target} in --ddtree-verify-modes"
    else:
        return True, ""
    if settings.method == LIVE:
        raise Refused(f"--method live: {why}")
    assert settings.method == AUTO
    return False, why


def _missing(path: Path | None, supervisor: Supervisor | None) -> str:
    """What a restart needs and was not given, in words."""
    needs = []
    if path is None:
        needs.append("--environment-file, the file that the service's environment comes from")
    if supervisor is None:
        needs.append("--unit or --restart-command")
    return "; and ".join(needs)


def _rewritable(path: Path) -> str:
    """Its text. Seen now rather than after the measurement that the change would follow."""
    try:
        text = envfile.read(path)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise Refused(f"{path.parent} cannot be written to, and {path.name} is replaced by a file beside it")
    return text


class Cutover:
    """One cutover, from a plan to a decision."""

    def __init__(self, settings: Settings, service: Service, record: Record, plan: Plan) -> None:
        self._settings, self._service, self._record, self._plan = settings, service, record, plan
        self._prompts = fixed_prompts(settings.prompts)

    def run(self) -> Verdict:
        """Do it, and keep the new mode if the verdict is good.

        Raises:
            Refused: something failed before anything was changed.
            Failed, Interrupted: it failed or was told to stop; the service is back, or the record's status says
                that it is not.
        """
        with Signals(self._service.progress.say) as signals:
            try:
                try:
                    return self._forward()
                finally:
                    # Inside the outer block: a signal that comes just before it is seen there, and none after it.
                    signals.shield()
            except BaseException as error:
                self._back(error)
                if not self._record.data["changed"] and not isinstance(error, Interrupted):
                    raise Refused(f"{reason_of(error)}; nothing was changed") from error
                if isinstance(error, Failed | Interrupted):
                    raise
                raise Failed(reason_of(error)) from error

    def _forward(self) -> Verdict:
        settings, service, record = self._settings, self._service, self._record
        with record.step("measure before") as entry:
            before = self._measure("before")
            entry["measured"] = before.record()
        if self._plan.live:
            with record.step("switch"):
                self._change(LIVE_MODE)
                service.progress.show(f"switching the running server to {settings.target}")
                service.switch_live(settings.target)
        else:
            with record.step("write the environment file"):
                self._write_environment()
            with record.step("restart"):
                self._change(RESTARTED)
                service.restart(self._log("restart"))
            with record.step("wait for health"):
                service.wait_for(settings.target)
        with record.step("measure after") as entry:
            after = self._measure("after")
            entry["measured"] = after.record()
        verdict = judge(before, after, settings.limits)
        if settings.target == "validate":
            with record.step("compare the kernels") as entry:
                ranks = self._watch()
                entry["validation"] = [rank.get("validation") for rank in ranks]
                compared = judge_validation(ranks, settings.limits)
            verdict.found += compared.found
            verdict.reasons += compared.reasons
        record.save(verdict=verdict.record(), limits=settings.limits.record())
        if not verdict.good:
            raise Failed("; ".join(verdict.reasons))
        if self._plan.live and settings.environment_file is not None:
            with record.step("write the environment file"):
                self._write_environment()
        record.save(status=journal.DONE, ended=journal.now())
        return verdict

    def _measure(self, when: str) -> Measurement:
        def show(text: str) -> None:
            self._service.progress.show(f"measuring {when}: {text}")

        settings = self._settings
        return measure(
            self._service.server, self._prompts, settings.tokens, settings.repeats, settings.answer_seconds, show
        )

    def _watch(self) -> list[dict[str, Any]]:
        """The comparison so far, after the time that it is given for the service's own traffic."""
        end = time.monotonic() + self._settings.watch_seconds
        while (left := end - time.monotonic()) > 0:
            self._service.progress.show(f"both kernels run on the service's traffic for another {left:.0f} s")
            time.sleep(min(left, self._settings.poll_seconds))
        return self._service.server.state().ranks

    def _write_environment(self) -> None:
        """First the backup, then a note of both, then the file."""
        path = self._settings.environment_file
        assert path is not None
        text = envfile.read(path)
        backup = envfile.back_up(path, self._record.data["stamp"])
        after = envfile.encoded(envfile.with_value(text, self._settings.target))
        self._change(
            ENVIRONMENT,
            environment={
                "path": str(path),
                "backup": str(backup),
                "value": envfile.value(text),
                "digest_before": envfile.digest(envfile.encoded(text)),
                "digest_after": envfile.digest(after),
            },
        )
        envfile.set_value(path, self._settings.target)

    def _change(self, what: str, **facts: Any) -> None:
        """Note a change before it is made."""
        self._record.save(changed=[*self._record.data["changed"], what], **facts)

    def _back(self, error: BaseException) -> None:
        record, progress = self._record, self._service.progress
        if not record.data["changed"]:
            with suppress(OSError):
                record.save(status=journal.REFUSED, reason=reason_of(error), ended=journal.now())
            return
        progress.say(f"{reason_of(error)}\ngoing back to mode {self._plan.before.mode}")
        go_back(record, self._service, self._log("rollback"), reason_of(error))

    def _log(self, what: str) -> Path:
        return self._record.path.with_suffix(f".{what}.log")


def go_back(record: Record, service: Service, log: Path, reason: str) -> bool:
    """Undo what the record says was changed, and note how it went; whether it went well.

    A disk that is full must not keep the service from coming back: then the record alone is stale. Nor may an error
    that nobody thought of leave the record without a decision.
    """
    changes: dict[str, Any]
    try:
        changes = {"status": journal.BACK, "undone": undo(record, service, log)}
    except Exception as error:
        changes = {"status": journal.STUCK, "undo_error": reason_of(error), "left": may_be_healthy(service)}
    record.data |= {**changes, "reason": reason, "ended": journal.now()}
    with suppress(OSError):
        record.save()
    return bool(record.data["status"] == journal.BACK)


def reason_of(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file'}: {error.strerror}"
    return str(error) or type(error).__name__


def begin(settings: Settings, service: Service, diary: Journal, plan: Plan) -> Record:
    """The record of a cutover that is about to start; the caller holds the journal's lock.

    Raises:
        Refused: an earlier one was killed half way.
    """
    refuse_after_killed(diary)
    return diary.begin(
        url=service.server.url,
        target=settings.target,
        method=LIVE if plan.live else RESTART,
        before={"mode": plan.before.mode, "environment_value": plan.value, "ranks": plan.before.ranks},
        supervisor=service.supervisor.record() if service.supervisor else {},
        environment={"path": str(settings.environment_file), "value": plan.value}
        if settings.environment_file
        else None,
        plan=plan.text,
    )


def refuse_after_killed(diary: Journal) -> None:
    """Raise Refused if a cutover before this one left the service changed and undecided."""
    last = diary.latest()
    if last is not None and last.unfinished:
        step = last.data["steps"][-1]["step"] if last.data["steps"] else "its start"
        raise Refused(
            f"the cutover to {last.data['target']} of {last.data['began']} ended at `{step}` without a decision "
            f"({last.path}): `{rollback_command(last)}` brings the service back, with --forget it leaves it"
        )

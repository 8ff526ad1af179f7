# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at every write, rename, request and restart of a cutover: files are whole, and a rollback finds the way back.

The tool runs in a forked child whose n-th such call kills it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import requests
from sglang_ddtree import atomic, supervisor

ONE = ("--prompts", "1")


def signal_at(number: int, signalled: signal.Signals) -> None:
    """Send this process a signal before, or in the middle of, its ``number``-th call."""
    calls = 0

    def counted(original: Callable[..., Any], before: Callable[..., None] | None = None) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                if before is not None:
                    before(*arguments, **options)
                os.kill(os.getpid(), signalled)
            return original(*arguments, **options)

        return call

    atomic._write_all = counted(atomic._write_all, lambda fd, content: os.write(fd, content[: len(content) // 2]))
    atomic._name = counted(atomic._name)
    os.replace = counted(os.replace)
    requests.Session.request = counted(requests.Session.request)
    supervisor._run = counted(supervisor._run)


def signalled_at(
    number: int, signalled: signal.Signals, run: Callable[..., int], *arguments: str, **options: bool
) -> int:
    """Run in a child that gets a signal at its ``number``-th call; its exit status, below zero if it was killed."""
    child = os.fork()
    if child == 0:
        # As a program finds it; the tests of servers let SIGTERM interrupt the session, so that it stops them.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal_at(number, signalled)
        status = run(*arguments, **options)
        os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def killed_at(number: int, run: Callable[..., int], *arguments: str, **options: bool) -> bool:
    """Run in a child that is killed at its ``number``-th call; whether it was."""
    status = signalled_at(number, signal.SIGKILL, run, *arguments, **options)
    assert status in (0, -signal.SIGKILL)
    return status != 0


@pytest.mark.parametrize("live", [True, False])
def test_killed_at_every_call(run, service, state, live, capfd):
    before = service.environment.read_text()
    number = 1
    while killed_at(number, run, "cutover", "--to", "on", *ONE, live=live):
        content = service.environment.read_text()
        assert content in (before, before.replace("VERIFY=off", "VERIFY=on"))
        if (status := run("rollback", live=live)) != 0:
            assert status == 2 and content == before and service.mode == "off"
        assert service.mode == "off" and service.environment.read_text() == before
        number += 1
    assert service.mode == "on" and "VERIFY=on" in service.environment.read_text()
    assert number > 20
    # Written whole, not yet renamed; the next cutover removed those of the kills before.
    assert {name for name in os.listdir(state.parent) if name.startswith(".")} <= {".sglang.env.sglang-ddtree-new"}
    assert len(list(state.glob(".*"))) <= 1


@pytest.mark.parametrize("live", [True, False])
def test_asked_to_stop_at_every_call(run, service, capfd, live):
    """It is back when the process ends; or it was decided before the signal came."""
    before = service.environment.read_text()
    for number in range(1, 200):
        status = signalled_at(number, signal.SIGTERM, run, "cutover", "--to", "on", *ONE, live=live)
        if service.mode == "off":
            # Until the plan is made, signals do what they do to any program.
            assert status in (130, -signal.SIGTERM) and service.environment.read_text() == before
            assert run("rollback", live=live) == 2, "nothing is left to do"
            continue
        assert service.environment.read_text() == before.replace("VERIFY=off", "VERIFY=on")
        assert run("rollback", live=live) == 0
        if status == 0:
            break
        assert status == -signal.SIGTERM, "the report alone was not written"
    assert status == 0 and number > 20


def test_a_cutover_after_a_killed_one_is_refused(run, service, state, capfd):
    service.wrong.add("on")
    number = 1
    while service.mode == "off":
        assert run("rollback") in (0, 2)
        assert killed_at(number, run, "cutover", "--to", "on", *ONE)
        number += 1
    service.wrong.clear()
    assert run("cutover", "--to", "validate") == 2
    said = capfd.readouterr().err
    assert "ended at `switch` without a decision" in said and "with --forget it leaves it" in said
    assert run("rollback", "--forget") == 0 and service.mode == "on"
    assert run("cutover", "--to", "validate") == 0


def test_killed_on_the_way_back(run, service, capfd):
    """A rollback that is killed can be made again."""
    before = service.environment.read_text()
    assert run("cutover", "--to", "on", live=False) == 0
    number = 1
    while killed_at(number, run, "rollback", live=False):
        assert service.environment.read_text() in (before, before.replace("VERIFY=off", "VERIFY=on"))
        number += 1
    assert service.mode == "off" and service.environment.read_text() == before and number > 4

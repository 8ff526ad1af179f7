# SPDX-License-Identifier: Apache-2.0
"""Files, terminals and supervisors that are not as one would like them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from sglang_ddtree import cutover, undo
from sglang_ddtree.cli import parser

VARIABLE = b"SGLANG_DDTREE_VERIFY="


def test_a_link_stays_a_link(run, service):
    real = service.environment.with_name("elsewhere.env")
    service.environment.rename(real)
    service.environment.symlink_to(real.name)
    before = real.read_bytes()
    assert run("cutover", "--to", "on", live=False) == 0
    assert service.environment.is_symlink() and VARIABLE + b"on" in real.read_bytes()
    assert run("rollback", live=False) == 0
    assert service.environment.is_symlink() and real.read_bytes() == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\xff=\xe9\r\nSGLANG_DDTREE_VERIFY=off\r\nB=1\r\n", b"\xff=\xe9\r\nSGLANG_DDTREE_VERIFY=on\r\nB=1\r\n"),
        (b"export SGLANG_DDTREE_VERIFY='off'\nB=1", b"export SGLANG_DDTREE_VERIFY=on\nB=1"),
        (b"", b"SGLANG_DDTREE_VERIFY=on\n"),
        ("# \N{SNOWMAN}\n\n".encode(), "# \N{SNOWMAN}\n\nSGLANG_DDTREE_VERIFY=on\n".encode()),
        (b"A=b \\\n", b"A=b \\\n\nSGLANG_DDTREE_VERIFY=on\n"),
    ],
)
@pytest.mark.parametrize("edited", [False, True])
def test_every_other_byte_stays(run, service, before, after, edited):
    service.environment.write_bytes(before)
    assert run("cutover", "--to", "on") == 0
    assert service.environment.read_bytes() == after
    if edited:
        service.environment.write_bytes(b"N=1\n" + after)
    assert run("rollback") == 0
    content = service.environment.read_bytes()
    if not edited:
        assert content == before
        return
    assert content.startswith(b"N=1\n") and VARIABLE + b"on" not in content
    assert content.count(b"\r") == before.count(b"\r")


def test_a_path_from_another_folder(run, service, monkeypatch):
    before = service.environment.read_bytes()
    monkeypatch.chdir(service.environment.parent)
    arguments = ("--environment-file", service.environment.name, "--restart-command", service.restart_command)
    assert run("cutover", "--to", "on", *arguments, live=False, restart=False) == 0
    monkeypatch.chdir("/")
    assert run("rollback", live=False, restart=False) == 0
    assert service.environment.read_bytes() == before and service.mode == "off"


def test_a_folder_that_cannot_be_written_to(run, service, monkeypatch, capsys):
    """Root may write anywhere but to a file system that is mounted read-only."""
    monkeypatch.setattr(cutover.os, "access", lambda path, mode: Path(path) != service.environment.parent)
    assert run("cutover", "--to", "on") == 2
    assert "cannot be written to, and sglang.env is replaced by a file beside it" in capsys.readouterr().err
    assert "POST /generate" not in service.requests


class Gone:
    """A terminal that has hung up."""

    def isatty(self) -> bool:
        return True

    def write(self, *_text: str) -> int:
        raise OSError(5, "Input/output error")

    flush = fileno = write


@pytest.mark.parametrize("live", [True, False])
def test_a_terminal_that_hangs_up(run, service, monkeypatch, live):
    """The signal comes, and nothing can be said any more."""

    def hang_up() -> None:
        if service.mode == "on":
            service.hooks.clear()
            monkeypatch.setattr(sys, "stderr", Gone())
            monkeypatch.setattr(sys, "stdout", Gone())
            os.kill(os.getpid(), signal.SIGHUP)

    service.hooks["POST /generate"] = hang_up
    before = service.environment.read_bytes()
    assert run("cutover", "--to", "on", live=live) == 130
    assert service.mode == "off" and service.environment.read_bytes() == before


@pytest.mark.parametrize("comes_back_in", ["off", "on", None])
def test_dies_where_nothing_here_restarts_it(run, service, record, comes_back_in):
    """A container's engine restarts it, or nobody does."""

    def die() -> None:
        if service.mode == "on":
            service.mode = None
            service.hooks.clear()
            service.hooks["GET /health"] = lambda: setattr(service, "mode", comes_back_in)

    service.hooks["POST /generate"] = die
    status = run("cutover", "--to", "on", restart=False)
    if comes_back_in is None:
        assert status == 3 and "did not come back within" in record()["undo_error"]
    else:
        assert status == 1 and service.mode == "off"
        assert record()["undone"][0].startswith("waited for the service, as it could not be switched back live")


def test_no_folder_for_the_log(run, service, state, record):
    """The restart that brings the service back does not depend on its log."""
    service.prepared = ["off"]
    service.wrong.add("on")
    moved = state.with_name("moved")
    service.hooks["POST /generate"] = lambda: service.mode == "on" and state.exists() and state.rename(moved)
    before = service.environment.read_bytes()
    assert run("cutover", "--to", "on") == 1
    assert service.mode == "off" and service.environment.read_bytes() == before and service.restarts == 2


def test_an_error_that_nobody_thought_of(run, service, record, monkeypatch):
    service.wrong.add("on")
    monkeypatch.setattr(undo, "_switch_back", lambda *arguments: 1 // 0)
    assert run("cutover", "--to", "on") == 3
    assert record()["status"] == "rollback failed" and record()["undo_error"] == "integer division or modulo by zero"


@pytest.fixture
def systemctl(service, tmp_path, monkeypatch):
    """systemd that knows the unit, answers ``is-active`` as told, and notes what it was called for."""
    calls, active = tmp_path / "calls", tmp_path / "active"
    active.write_text("active")
    script = tmp_path / "bin" / "systemctl"
    script.parent.mkdir()
    script.write_text(
        f"""#!/bin/sh
echo "$@" >> {calls}
case "$*" in
*LoadState*) echo loaded ;;
*EnvironmentFiles*) echo "/etc/other.env (ignore_errors=yes)"; echo "{service.environment} (ignore_errors=no)" ;;
is-active*) cat {active} ;;
restart*) {service.restart_command} ;;
esac
"""
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")

    class Systemctl:
        said = staticmethod(lambda: calls.read_text().splitlines())
        is_active = staticmethod(active.write_text)

    return Systemctl


def test_a_unit_is_found_and_restarted(run, service, systemctl, record):
    """Its last environment file counts, and its restarts do not use up StartLimitBurst."""
    before = service.environment.read_bytes()
    service.wrong.add("on")
    assert run("cutover", "--to", "on", live=False, restart=False) == 1
    assert service.mode == "off" and service.restarts == 2 and service.environment.read_bytes() == before
    assert record()["supervisor"] == {"unit": "sglang-ddtree.service"}
    said = systemctl.said()
    for n, line in enumerate(said):
        assert not line.startswith("restart") or said[n - 1] == "reset-failed sglang-ddtree.service"


def test_a_unit_that_gave_up(run, service, systemctl, record):
    service.never_healthy.add("on")
    service.hooks["GET /health"] = lambda: systemctl.is_active("failed" if service.mode == "on" else "active")
    assert run("cutover", "--to", "on", "--health-timeout", "60", live=False, restart=False) == 1
    assert "unit sglang-ddtree.service is failed; see `journalctl -u" in record()["reason"]


@pytest.mark.parametrize("key", ["sesame open", "sesame\nopen", "s\N{LATIN SMALL LETTER E WITH ACUTE}same"])
def test_what_cannot_be_a_key(run, service, tmp_path, capsys, key):
    (tmp_path / "other").write_text(key)
    assert run("cutover", "--to", "on", "--admin-key-file", str(tmp_path / "other"), live=False) == 2
    assert "is no key: it must be one line of ASCII" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["--prompts=0", "--prompts=9", "--tokens=0", "--repeats=-1", "--poll=-1", "--watch=nan", "--max-ulp=x"]
)
def test_numbers_that_mean_nothing(option, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["cutover", "--to", "on", option])
    assert option.partition("=")[0] in capsys.readouterr().err

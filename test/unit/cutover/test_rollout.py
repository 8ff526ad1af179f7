# SPDX-License-Identifier: Apache-2.0
"""A cutover's ways forward, and back by itself."""

from __future__ import annotations

import os
import signal

import pytest
from fake_service import FakeService
from sglang_ddtree import atomic, cutover, journal
from sglang_ddtree.journal import Journal


def restart_only(service: FakeService) -> None:
    service.prepared = [service.mode]


@pytest.mark.parametrize("target", ["validate", "on"])
def test_live_switch_is_kept_and_written_down(run, service, record, capsys, target):
    before = service.environment.read_text()
    assert run("cutover", "--to", target) == 0
    assert service.mode == target and service.restarts == 0
    assert service.environment.read_text() == before.replace("VERIFY=off", f"VERIFY={target}")
    kept = record()
    assert kept["status"] == "done" and kept["method"] == "live" and kept["before"]["mode"] == "off"
    assert kept["verdict"]["good"] and kept["changed"] == ["live mode", "environment file"]
    assert [step["step"] for step in kept["steps"] if step["ok"]][:3] == ["measure before", "switch", "measure after"]
    said = capsys.readouterr().out
    assert f"cutover off -> {target} (live)" in said and "result: kept" in said and "2 of 2 answers equal" in said


def test_restart_where_the_mode_was_not_prepared(run, service, record):
    restart_only(service)
    assert run("cutover", "--to", "on") == 0
    assert service.mode == "on" and service.restarts == 1 and "POST /ddtree_verify" not in service.requests
    assert record()["method"] == "restart"


def test_restart_without_an_admin_key(run, service):
    assert run("cutover", "--to", "on", live=False) == 0
    assert service.mode == "on" and service.restarts == 1


def test_live_without_anything_that_restarts(run, service, capsys):
    before = service.environment.read_text()
    assert run("cutover", "--to", "on", restart=False) == 0
    assert service.mode == "on" and service.environment.read_text() == before
    assert "the next start of the service will have its old mode" in capsys.readouterr().err


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("wrong", "another answer from token 3 on (4.900 nats apart)"), ("slow", "too slow"), ("ties", "part, if only")],
)
def test_worse_answers_bring_it_back(run, service, record, capsys, live, trouble, reason):
    before = service.environment.read_text()
    if trouble != "slow":
        getattr(service, trouble).add("on")
    # Never passed: how slow is too slow is test_judge's subject.
    limits = ("--min-speed-ratio", "1e9") if trouble == "slow" else ()
    assert run("cutover", "--to", "on", *limits, live=live) == 1
    assert service.mode == "off" and service.environment.read_text() == before
    assert service.restarts == (0 if live else 2)
    back = record()
    assert back["status"] == "rolled back" and reason in back["reason"]
    assert "result: went back, the service is in mode off" in capsys.readouterr().out


def test_a_near_tie_may_stay(run, service, record):
    service.ties.add("on")
    assert run("cutover", "--to", "on", "--max-diverged", "1") == 0
    assert "prompt 1: parts at token 3, a near tie (0.100 nats)" in record()["verdict"]["found"]


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"max_ulp": 300.0}, "max error 300 ulp; --max-ulp is 32"),
        ({"mean_ulp": 1.0}, "mean error 1 ulp; --max-mean-ulp is 0.25"),
        ({"rows_beyond_2_ulp": 1100}, "0.011 of the rows are beyond 2 ulp; --max-beyond-2-ulp is 0.01"),
        ({"rows_not_finite": 1}, "1 rows are not finite"),
        ({"steps": 0}, "no forward was compared"),
    ],
)
def test_comparison_beyond_a_limit_brings_it_back(run, service, record, numbers, reason):
    service.comparison |= numbers
    assert run("cutover", "--to", "validate") == 1
    assert service.mode == "off" and record()["reason"].startswith(reason)


def test_health_never_comes_back(run, service, record):
    restart_only(service)
    service.never_healthy.add("on")
    assert run("cutover", "--to", "on") == 1
    assert service.mode == "off" and service.restarts == 2
    assert "did not come back within 0 s: it answers 503" in record()["reason"]


def test_neither_way_comes_back(run, service, record, capsys):
    restart_only(service)
    service.never_healthy.add("on")
    service.hooks["GET /health"] = lambda: service.restarts and service.never_healthy.add("off")
    assert run("cutover", "--to", "on") == 3
    assert record()["status"] == "rollback failed"
    said = capsys.readouterr().out
    assert "result: COULD NOT GO BACK" in said and "at present the server" in said
    assert "SGLANG_DDTREE_VERIFY=off" in service.environment.read_text()
    service.hooks.clear()
    service.never_healthy.clear()
    assert run("rollback") == 0
    assert service.mode == "off"


def test_environment_that_the_server_does_not_read(run, service, record):
    restart_only(service)
    service.restart = lambda: None
    assert run("cutover", "--to", "on") == 1
    assert "is healthy in mode off, not on: does its command line have --ddtree-verify" in record()["reason"]


def test_restart_command_that_fails(run, service, record):
    restart_only(service)
    before = service.environment.read_text()
    assert run("cutover", "--to", "on", "--environment-file", str(service.environment), "--restart-command", "false",
               restart=False) == 3  # fmt: skip
    assert "`false` ended with status 1" in record()["reason"]
    assert service.environment.read_text() == before and service.mode == "off"


def test_server_dies_after_the_live_switch(run, service, record):
    """It cannot be switched back, but the environment starts it in its old mode."""

    def die(method: str, path: str, *rest: object) -> tuple[int, dict]:
        if (service.mode == "on" and service.requests[-1].startswith("POST /ddtree_verify")) or service.dead:
            service.dead = not service.restart_ordered
        return (500, {"error": "dead"}) if service.dead else FakeService.serve(service, method, path, *rest)

    service.dead = False
    service.serve = die
    assert run("cutover", "--to", "on") == 1
    assert service.mode == "off" and service.restarts == 1
    assert "it is healthy in mode off" in record()["undone"][0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_brings_it_back(run, service, record, number):
    def stop() -> None:
        if service.mode == "on":
            os.kill(os.getpid(), number)

    service.hooks["POST /generate"] = stop
    before = signal.getsignal(number)
    assert run("cutover", "--to", "on") == 130
    assert service.mode == "off" and record()["reason"] == f"stopped by {number.name}"
    assert signal.getsignal(number) is before


def test_signal_before_any_change(run, service, record, capsys):
    service.hooks["POST /generate"] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    assert run("cutover", "--to", "on") == 130
    assert service.mode == "off" and record()["status"] == "refused" and "POST /ddtree_verify" not in service.requests
    assert "nothing was changed" in capsys.readouterr().out


def test_signals_do_not_stop_the_way_back(run, service, record):
    service.wrong.add("on")
    posts = []

    def switching() -> None:
        posts.append(service.mode)
        if len(posts) == 2:  # the one back
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)

    service.hooks["POST /ddtree_verify"] = switching
    assert run("cutover", "--to", "on") == 1
    assert service.mode == "off" and record()["status"] == "rolled back"


def test_two_at_once(run, service, state, capsys):
    with Journal(state).locked():
        assert run("cutover", "--to", "on") == 2
        assert run("rollback") == 2
    said = capsys.readouterr().err
    assert said.count(f"a cutover or rollback is under way here: process {os.getpid()} since ") == 2
    assert service.mode == "off" and "POST /ddtree_verify" not in service.requests
    assert run("cutover", "--to", "on") == 0


def full_disk_after(writes: int, monkeypatch: pytest.MonkeyPatch, only: str = "") -> list[str]:
    """Let every write after so many fail; the names that were written meanwhile."""
    original, done = atomic._write_all, []

    def write(fd: int, content: bytes) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if only in name:
            done.append(name)
            if len(done) > writes:
                os.write(fd, content[: len(content) // 2])
                raise OSError(28, "No space left on device")
        original(fd, content)

    monkeypatch.setattr(atomic, "_write_all", write)
    return done


@pytest.mark.parametrize("live", [True, False])
def test_full_disk_at_every_write(run, service, state, monkeypatch, live):
    """However far it comes, the environment file is whole and fits the mode, and no half-written file stays."""
    before = service.environment.read_text()
    for writes in range(40):
        with monkeypatch.context() as patch:
            full_disk_after(writes, patch)
            status = run("cutover", "--to", "on", live=live)
        content = service.environment.read_text()
        assert content == before.replace("VERIFY=off", f"VERIFY={service.mode}")
        assert not [name for name in os.listdir(state) + os.listdir(state.parent) if "sglang-ddtree-new" in name]
        if status == 0:
            break
        assert status in (1, 2) and service.mode == "off"
        # The record may be stale on a full disk, then a rollback is due, and finds nothing to do.
        assert run("rollback") in (0, 2)
        assert service.mode == "off" and service.environment.read_text() == before
    assert status == 0 and writes > 5


def test_rollback_of_a_kept_cutover(run, service, record, capsys):
    before = service.environment.read_text()
    assert run("cutover", "--to", "on") == 0
    assert run("rollback") == 0
    assert service.mode == "off" and service.environment.read_text() == before and service.restarts == 0
    assert record()["status"] == "rolled back"
    assert run("rollback") == 2
    assert "is rolled back already" in capsys.readouterr().err


def test_rollback_of_a_live_cutover_wants_its_key(run, service, record, capsys, tmp_path):
    """Refused while nothing is changed: a wrong key would else cost a restart, a missing one leave it undone."""
    assert run("cutover", "--to", "on", restart=False) == 0
    assert run("rollback", live=False, restart=False) == 2
    assert "no admin key is known here" in capsys.readouterr().err
    (tmp_path / "wrong").write_text("guess")
    assert run("rollback", "--admin-key-file", str(tmp_path / "wrong"), live=False) == 2
    assert "give the right one, or none and the service is restarted" in capsys.readouterr().err
    assert service.mode == "on" and service.restarts == 0 and record()["status"] == "done"
    assert run("rollback") == 0
    assert service.mode == "off" and service.restarts == 0


def test_rollback_of_a_live_cutover_by_a_restart(run, service, capsys):
    assert run("cutover", "--to", "on") == 0
    assert run("rollback", live=False) == 0
    assert "requests in flight are lost" in capsys.readouterr().err
    assert service.mode == "off" and service.restarts == 1


def test_the_report_names_the_folder_of_the_records(run, state, capsys, monkeypatch):
    """A rollback looks into the default folder otherwise, and finds nothing to undo."""
    assert run("cutover", "--to", "on") == 0
    assert f"back: sglang-ddtree rollback --state-dir {state}\n" in capsys.readouterr().out
    monkeypatch.setattr(journal, "default_folder", lambda: state)
    assert run("status") == 0
    assert "back: sglang-ddtree rollback\n" in capsys.readouterr().out


def test_rollback_keeps_what_was_edited_since(run, service, record):
    assert run("cutover", "--to", "on", live=False) == 0
    service.environment.write_text(service.environment.read_text() + "LATER=1\n")
    assert run("rollback") == 0
    content = service.environment.read_text()
    assert "LATER=1" in content and "SGLANG_DDTREE_VERIFY=off" in content and service.mode == "off"
    assert "was edited since" in record()["undone"][0]


def test_a_prompt_that_is_too_long_is_left_out(run, service, record):
    assert run("cutover", "--to", "on", "--prompts", "8") == 0
    found = record()["verdict"]["found"]
    assert found[0].startswith("7 of 7 answers equal") and found[1].startswith("prompt 8 is too long for this server")


def test_plan_text_names_every_change(run, service, capsys):
    before = service.environment.read_text()
    restart_only(service)
    assert run("cutover", "--to", "on", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "restart the service in mode on, since the server was started without on in --ddtree-verify-modes" in said
    assert service.environment.read_text() == before and "POST /generate" not in service.requests


def test_status(run, service, capsys):
    assert run("status") == 0
    said = capsys.readouterr().out
    assert "healthy\nmode: off" in said and "can be switched to off, validate, on" in said
    run("cutover", "--to", "validate")
    capsys.readouterr()
    assert run("status") == 0
    said = capsys.readouterr().out
    assert "comparison: 40 forwards, max 1.5 ulp" in said and "last cutover off -> validate" in said
    service.mode = None
    assert run("status", "--json") == 1
    assert '"health": "answers 503"' in capsys.readouterr().out


def test_health(run, service, capsys):
    assert run("health") == 0
    service.mode = None
    assert run("health") == 1
    assert capsys.readouterr().out == "healthy\nanswers 503\n"


def test_reasons_name_the_file(tmp_path):
    assert cutover.reason_of(OSError(28, "No space left on device", "x")) == "x: No space left on device"

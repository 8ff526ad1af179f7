# SPDX-License-Identifier: Apache-2.0
"""What no cutover starts from: each refusal names the remedy, and nothing is changed."""

from __future__ import annotations

import pytest


@pytest.fixture
def refused(run, service, capsys):
    """Run, and return the refusal."""
    before = service.environment.read_text(), service.mode

    def call(*arguments: str, **options: bool) -> str:
        assert run("cutover", *arguments, **options) == 2
        assert (service.environment.read_text(), service.mode) == before
        assert "POST /ddtree_verify" not in service.requests and service.restarts == 0
        return capsys.readouterr().err

    return call


def test_wrong_admin_key(refused, tmp_path):
    (tmp_path / "wrong").write_text("guess")
    assert "401, Unauthorized; the admin key is wrong" in refused(
        "--to", "on", "--admin-key-file", str(tmp_path / "wrong"), live=False
    )


def test_key_file_that_is_missing_or_empty(refused, tmp_path):
    (tmp_path / "empty").write_text("\n")
    assert "--admin-key-file" in refused("--to", "on", "--admin-key-file", str(tmp_path / "none"), live=False)
    assert "is empty" in refused("--to", "on", "--admin-key-file", str(tmp_path / "empty"), live=False)


def test_already_there(refused):
    assert "the server is in mode off already" in refused("--to", "off")


def test_unhealthy_service(run, service, capsys):
    service.mode = None
    assert run("cutover", "--to", "on") == 2
    assert "answers 503; a cutover starts from a healthy service" in capsys.readouterr().err


def test_server_without_a_switch(refused, service):
    service.state = lambda: None
    assert "the switch comes with --attention-backend ddtree_sm120" in refused("--to", "on")


def test_ranks_that_disagree(run, service, capsys):
    states = iter(["off", "on"])
    service.serve_state = service.state
    rank = {"modes": ["off"], "validation": None}
    serve = service.serve
    service.serve = lambda method, path, *rest: (
        (200, {"internal_states": [{"ddtree_verify": {**rank, "mode": mode}} for mode in states]})
        if path == "/server_info"
        else serve(method, path, *rest)
    )
    assert run("cutover", "--to", "on") == 2
    assert "ranks are in different modes" in capsys.readouterr().err


def test_nothing_that_restarts(refused, service):
    service.prepared = ["off"]
    said = refused("--to", "on", restart=False)
    assert "started without on in --ddtree-verify-modes; a restart needs --environment-file" in said
    assert "and --unit or --restart-command" in said
    said = refused("--to", "on", "--environment-file", str(service.environment), restart=False)
    assert "a restart needs --unit or --restart-command" in said


def test_live_asked_for_where_it_is_not_possible(refused, service):
    assert "--method live: no admin key is known here" in refused("--to", "on", "--method", "live", live=False)
    service.prepared = ["off"]
    assert "--method live: the server was started without on" in refused("--to", "on", "--method", "live")


def test_flag_that_wins_over_the_variable(run, service, capsys):
    service.environment.write_text("SGLANG_ARGS=--model-path /m --ddtree-verify off --page-size 64\n")
    assert run("cutover", "--to", "on") == 2
    assert (
        "gives the server --ddtree-verify, which wins over SGLANG_DDTREE_VERIFY: take it out" in capsys.readouterr().err
    )
    service.environment.write_text("SGLANG_ARGS=--model-path /m --ddtree-verify-modes off,on\n")
    assert run("cutover", "--to", "on") == 0


def test_environment_file_that_is_missing(refused, tmp_path):
    said = refused(
        "--to", "on", "--environment-file", str(tmp_path / "none"), "--restart-command", "true", restart=False
    )
    assert "No such file" in said


def test_records_that_cannot_be_written(run, service, state, capsys):
    state.parent.joinpath("state").write_text("a file, not a folder")
    assert run("cutover", "--to", "on") == 2
    assert "give another --state-dir" in capsys.readouterr().err


def test_nobody_to_ask(service, state, capsys, monkeypatch):
    from sglang_ddtree.cli import main

    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    arguments = ["cutover", "--to", "on", "--url", service.url, "--state-dir", str(state)]
    arguments += ["--environment-file", str(service.environment), "--restart-command", service.restart_command]
    assert main(arguments) == 2
    assert "--yes does it without" in capsys.readouterr().err
    assert service.mode == "off"


def test_nothing_to_roll_back(run, capsys):
    assert run("rollback") == 2
    assert "there is no cutover to undo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tokens", "x"), "--tokens: 'x' is no whole number of at least 1"),
        (("--repeats", "-1"), "--repeats: '-1' is no whole number of at least 1"),
        (("--watch", "soon"), "--watch: 'soon' is no number of 0 or more"),
        (("--max-ulp", "nan"), "--max-ulp: 'nan' is no number of 0 or more"),
        (("--url", "localhost:30000"), "--url: 'localhost:30000' is no address of a server, such as http://"),
        (("--url", ""), "SGLANG_DDTREE_URL"),
    ],
)
def test_values_that_make_no_sense(run, capsys, arguments, said):
    with pytest.raises(SystemExit, match="2"):
        run("cutover", "--to", "on", *arguments)
    assert said in capsys.readouterr().err

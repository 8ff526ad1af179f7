# SPDX-License-Identifier: Apache-2.0
"""`fork rebase --write`: nothing is written when anything failed, unless asked."""

import subprocess
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fork import cli
from fork import config as configuration
from fork import patches as patch_files
from fork.rebase import move, report

TOML = """\
# At the top.
[upstream]
name = "sglang"
version = "0.5.23" # the release
supported = ["0.5.22", "0.5.23"]
revision = 3

[sha256."0.5.23"]
"sglang-0.5.23-a.whl" = "aa"
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository of one file, and a report and tests that end as they are told."""
    (tmp_path / "upstream.toml").write_text(TOML)
    (tmp_path / "README.md").write_text("SGLang 0.5.23, not 0.5.2\n")
    told = SimpleNamespace(ok=True, passed=True, tried=[])
    config = replace(configuration.load(), root=tmp_path, hashes={"0.5.24": {"sglang-0.5.24-a.whl": "bb"}})
    monkeypatch.setattr(configuration, "load", lambda: config)
    monkeypatch.setattr(patch_files, "load_series", lambda folder: [])
    monkeypatch.setattr(report, "Carried", lambda *_: None)
    monkeypatch.setattr(report, "make", lambda *_: SimpleNamespace(ok=told.ok))
    monkeypatch.setattr(report, "lines", lambda *_, **__: ["the report"])

    def try_out(target, text, tests):
        told.tried.append((target.version, tests))
        return told.passed, tmp_path / "copy"

    monkeypatch.setattr(move, "try_out", try_out)
    told.root = tmp_path
    return told


def pinned(root) -> str:
    return tomllib.loads((root / "upstream.toml").read_text())["upstream"]["version"]


def rebase(*arguments: str) -> int:
    return cli.main(["rebase", "--to", "0.5.24", *arguments])


def test_a_report_writes_nothing(checkout, capsys):
    assert rebase() == 0
    checkout.ok = False
    assert rebase() == 1
    assert capsys.readouterr().out == "the report\n" * 2
    assert (checkout.root / "upstream.toml").read_text() == TOML
    assert checkout.tried == []


def test_all_is_well(checkout, capsys):
    assert rebase("--write", "--tests", "test/unit") == 0
    assert checkout.tried == [("0.5.24", "test/unit")]
    text = (checkout.root / "upstream.toml").read_text()
    assert tomllib.loads(text) == {
        "upstream": {"name": "sglang", "version": "0.5.24", "supported": ["0.5.22", "0.5.23", "0.5.24"], "revision": 1},
        "sha256": {"0.5.23": {"sglang-0.5.23-a.whl": "aa"}, "0.5.24": {"sglang-0.5.24-a.whl": "bb"}},
    }
    assert text.startswith("# At the top.\n") and "# the release" in text
    assert "README.md:1 still names 0.5.23" in capsys.readouterr().out


def test_an_edit_or_symbol_that_fails(checkout, capsys):
    checkout.ok = False
    assert rebase("--write") == 1
    assert "nothing was written: mend what failed, or say --anyway" in capsys.readouterr().err
    assert (checkout.root / "upstream.toml").read_text() == TOML
    assert checkout.tried == []


def test_tests_that_fail(checkout, capsys):
    checkout.passed = False
    assert rebase("--write") == 1
    assert f"nothing was written: tests failed in {checkout.root}/copy" in capsys.readouterr().err
    assert (checkout.root / "upstream.toml").read_text() == TOML


@pytest.mark.parametrize(("ok", "passed"), [(False, True), (True, False)])
def test_anyway(checkout, ok, passed):
    checkout.ok, checkout.passed = ok, passed
    assert rebase("--write", "--anyway") == 1
    assert pinned(checkout.root) == "0.5.24"


def test_hashes_that_are_not_there_are_asked_for(monkeypatch):
    config = configuration.load()
    monkeypatch.setattr(move.pin, "hashes", lambda config, version: {f"sglang-{version}.whl": "cc"})
    assert move.with_hashes(config, config.pinned) is config
    assert move.with_hashes(config, "9.9").hashes["9.9"] == {"sglang-9.9.whl": "cc"}


def test_a_trial_is_a_copy_with_the_users_python(tmp_path, monkeypatch):
    for name in ("fork/a.py", "models/b.bin", ".venv/c", "build/d", "python/__pycache__/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    ran = []

    def run(command, cwd, env, check):
        ran.append((command, cwd, env))
        return SimpleNamespace(returncode=2)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("FORK_UPSTREAM", "0.5.22")
    monkeypatch.setenv("MAKEFLAGS", "-n")
    config = replace(configuration.load(), root=tmp_path).at("0.5.24")
    passed, copy = move.try_out(config, TOML, "test/unit")
    assert not passed
    assert copy == tmp_path / "build" / "rebase" / "0.5.24"
    files = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert files == {"fork/a.py", "models/b.bin", "upstream.toml"}
    ((command, cwd, environment),) = ran
    assert command[:2] == ["make", "test"] and command[-1] == "TESTS=test/unit" and cwd == copy
    assert not {"FORK_UPSTREAM", "MAKEFLAGS"} & set(environment)

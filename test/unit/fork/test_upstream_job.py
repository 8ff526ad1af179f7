# SPDX-License-Identifier: Apache-2.0
"""The scheduled job: a newer release, its report, one issue."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fork import pin
from fork.errors import ForkError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def job(tmp_path):
    """Runs the script with a registry, a report and a list of issues that are told; returns what it told ``gh``."""

    def run(newest: str, report: str = "the report", status: int = 0, issues: str = "") -> tuple[int, str, str, str]:
        (tmp_path / "python").write_text(
            f'#!/bin/sh\ncase "$3" in newest) echo "{newest}" ;;\n'
            f'rebase) echo "$@"; cat {tmp_path}/said; exit {status} ;; esac\n'
        )
        (tmp_path / "said").write_text(report)
        (tmp_path / "gh").write_text(
            f"#!/bin/bash\n"
            f'if [ "$2" = list ]; then echo "{issues}"; exit; fi\n'
            f'echo "${{@:1:4}}" > {tmp_path}/asked; cat "$6" > {tmp_path}/body\n'
        )
        for name in ("python", "gh"):
            (tmp_path / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            [ROOT / ".github" / "report-upstream.sh"], env=environment, capture_output=True, text=True, check=False
        )
        asked, body = (tmp_path / name for name in ("asked", "body"))
        told = [path.read_text() if path.exists() else "" for path in (asked, body)]
        return done.returncode, done.stdout, *told

    return run


def test_nothing_newer(job):
    assert job("") == (0, "upstream has nothing newer\n", "", "")


@pytest.mark.parametrize("status", [0, 1])
def test_a_newer_release_opens_an_issue(job, status):
    code, _, asked, body = job("9.9", "line one\nline two", status)
    assert (code, asked) == (0, "issue create --title Upstream 9.9\n")
    assert body.startswith("`make rebase TO=9.9 WRITE=1` moves the fork")
    assert "```\n-m fork rebase --to 9.9 --brief\nline one\nline two```\n" in body


def test_a_release_is_reported_once(job):
    assert job("9.9", issues="Upstream 9.9") == (0, "Upstream 9.9 was reported before\n", "", "")


def test_a_report_that_cannot_be_made_fails_the_job(job):
    code, said, asked, _ = job("9.9", "fork: no network", status=2)
    assert (code, asked) == (2, "")
    assert "fork: no network" in said


def test_a_long_report_is_cut(job):
    *_, body = job("9.9", "x" * 100_000)
    assert 60_000 < len(body) < 65_536


def test_newest(config, monkeypatch):
    asked = []

    def stated(requirement, python, platform):
        asked.append(requirement)
        return "sglang-9.9-cp311-cp311-manylinux_2_34_x86_64.whl", "aa"

    monkeypatch.setattr(pin, "_stated", stated)
    known = replace(config, hashes={"0.5.9": {}, "0.5.23": {}, "0.5.22": {}})
    assert pin.newest(known) == "9.9"
    assert asked == ["sglang>0.5.23"], "by version, not by letter"


@pytest.mark.parametrize(("said", "raises"), [("Could not find a version that satisfies", False), ("no network", True)])
def test_no_newest(config, monkeypatch, said, raises):
    def stated(*_):
        raise ForkError(f"sglang>1 cannot be fetched: {said}")

    monkeypatch.setattr(pin, "_stated", stated)
    if raises:
        with pytest.raises(ForkError, match=said):
            pin.newest(config)
    else:
        assert pin.newest(config) is None


def test_the_workflows_are_valid_and_name_what_there_is():
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(files) >= 2
    command = [Path(sys.executable).parent / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    make = (ROOT / "Makefile").read_text()
    listed = re.search(r"target: \[(.*)\]", (ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    for target in listed[1].split(", "):
        assert f"\n{target}:" in make

# SPDX-License-Identifier: Apache-2.0
"""The commands as a user types them, and several of them at once."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import libcst
import pytest

from fork import cli, halves, patches

ROOT = Path(__file__).resolve().parents[3]


def fork(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "fork", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, **options
    )


@pytest.fixture
def parsed(monkeypatch) -> Counter[str]:
    """How often LibCST parsed each text of this process."""
    texts: Counter[str] = Counter()
    parse = libcst.parse_module

    def count(text, *options):
        texts[text] += 1
        return parse(text, *options)

    monkeypatch.setattr(libcst, "parse_module", count)
    return texts


def test_check_has_one_row_a_patch(config, parsed, capsys, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})  # in one process, so that all is counted
    status = cli.main(["check"])
    said = capsys.readouterr()
    assert status == 0, said
    rows = [line.split() for line in said.out.splitlines() if line[:4].isdigit() and "-" in line.split()[0]]
    names = sorted(path.stem for path in config.patches.glob("[0-9]*"))
    assert [row[0] for row in rows] == names
    assert {row[3] for row in rows} <= {"ok", "not"}, "ok, or not for this release"
    assert f"{len(names)} of {len(names)} patches apply" in said.out

    # Most of its time goes into parsing. It is counted, as seconds hang on the machine: each file once.
    edited = {edit.file for patch in patches.load_series(config.patches) for edit in patch.edits}
    files = [text for text in parsed if text.count("\n") > 100]
    assert 10 < len(files) <= len(edited)
    assert {parsed[text] for text in files} == {1}


def test_check_of_an_unknown_release():
    done = fork("check", "--upstream", "0.1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fork: upstream.toml has no hashes of sglang 0.1; add what `python -m fork pin 0.1` prints\n"


@pytest.fixture
def applied(tree, config, monkeypatch):
    """`fork diff` in this process finds the series applied, as the other tests have it. Where the pipe is closed it
    applies it itself."""

    def apply(source, series, version):
        assert (source.version, version) == (config.version, config.version)
        assert [patch.name for patch in series] == [outcome.patch.name for outcome in tree.outcomes]
        return replace(tree, added={})

    monkeypatch.setattr(halves, "apply_series_in_halves", apply)


def test_diff_is_a_unified_diff_that_patch_would_take(tree, applied, capsys):
    status = cli.main(["diff"])
    said = capsys.readouterr()
    assert (status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert [line[10:] for line in lines if line.startswith("+++ fork/")] == [
        f"{file}"[1:] for file in sorted(tree.edited)
    ]
    assert "\033" not in said.out
    added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert '+    "ddtree_sm120",' in added or "+    'ddtree_sm120'," in added


def test_diff_stat(tree, applied, capsys):
    status = cli.main(["diff", "--stat", "--added"])
    said = capsys.readouterr()
    assert (status, said.err) == (0, "")
    *rows, total = said.out.splitlines()
    assert len(rows) == len(tree.edited) + len(tree.added)
    plus = sum(int(row.split("+")[0]) for row in rows)
    assert int(total.split("+")[0]) == plus
    assert total.endswith(f"in {len(rows)} files")
    assert any(row.endswith("(added)") for row in rows)


def test_diff_into_a_closed_pipe():
    done = subprocess.run(
        f"{sys.executable} -m fork diff | head -1", shell=True, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("--- upstream/")
    assert done.stderr == ""


def test_diff_is_coloured_on_a_terminal(pinned, tree):
    from fork import diff

    lines = list(diff.unified(pinned, tree, added=False, colour=True))
    assert any(line.startswith("\033[32m+") for line in lines)
    assert any(line.startswith("\033[31m-") for line in lines)


def test_two_builds_at_once(tmp_path):
    command = [sys.executable, "-m", "fork", "build", "--out", str(tmp_path)]
    builds = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    told = [build.communicate() for build in builds]
    assert [build.returncode for build in builds] == [0, 0], told
    assert told[0][0] == told[1][0]
    (wheel,) = tmp_path.iterdir()
    assert str(wheel) == told[0][0].decode().strip()


# The signal comes when the wheel is half written, however fast the machine is. A shell's background job starts with
# SIGINT ignored, so the handler is set as a terminal's job has it.
INTERRUPTED = """
import os, signal, sys
from fork import cli, wheel

signal.signal(signal.SIGINT, signal.default_int_handler)
add = wheel.WheelWriter.add

def interrupted(self, *arguments):
    add(self, *arguments)
    os.kill(os.getpid(), signal.SIGINT)

wheel.WheelWriter.add = interrupted
sys.exit(cli.main())
"""


def test_interrupted_build_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, "build", "--out", str(tmp_path / "out")]
    build = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert build.returncode == 130, build.stderr
    assert build.stderr.splitlines()[-1] == "fork: interrupted; nothing was left half done"
    assert build.stdout == ""
    assert list((tmp_path / "out").iterdir()) == []


def test_out_that_cannot_be_a_folder(tmp_path):
    (tmp_path / "file").touch()
    done = fork("build", "--out", str(tmp_path / "file" / "out"))
    assert done.returncode == 2
    assert (
        done.stderr.splitlines()[-1] == f"fork: {tmp_path}/file/out: Not a directory; choose another folder with --out"
    )


def test_missing_library(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fork.apply", None)
    monkeypatch.delitem(sys.modules, "fork.apply")

    def missing(arguments):
        raise ModuleNotFoundError("No module named 'libcst'", name="libcst")

    monkeypatch.setattr(cli, "_check", missing)
    assert cli.main(["check"]) == 2
    assert "fork: libcst is missing; `pip install libcst packaging`" in capsys.readouterr().err


def test_broken_upstream_toml(tmp_path):
    from fork import config
    from fork.errors import ForkError

    with pytest.raises(ForkError, match=r"upstream.toml: cannot be read: No such file"):
        config.load(tmp_path)
    (tmp_path / "upstream.toml").write_text("[upstream\n")
    with pytest.raises(ForkError, match=r"upstream.toml: not valid TOML"):
        config.load(tmp_path)
    (tmp_path / "upstream.toml").write_text("[upstream]\nname = 'x'\n")
    with pytest.raises(ForkError, match=r"a key is missing or has the wrong type: 'flavour'"):
        config.load(tmp_path)


def test_help_lists_the_commands():
    done = fork("--help")
    assert done.returncode == 0
    for command in ("build", "install", "check", "diff", "pin", "doctor"):
        assert f"    {command}" in done.stdout


def test_make_help_lists_the_targets():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ})
    for target in ("serve", "test", "wheel", "lint", "clean", "check-cuda-deps"):
        assert f"make {target} " in done.stdout

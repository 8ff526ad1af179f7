# SPDX-License-Identifier: Apache-2.0
"""The environment file keeps every byte but the variable's, and is whole at every moment."""

from __future__ import annotations

import os
import stat

import pytest
from sglang_ddtree import atomic, envfile


@pytest.mark.parametrize(
    ("text", "value", "after"),
    [
        ("", None, "SGLANG_DDTREE_VERIFY=on\n"),
        ("A=1", None, "A=1\nSGLANG_DDTREE_VERIFY=on\n"),
        ("A=1\nSGLANG_DDTREE_VERIFY=off\nB='x y'\n", "off", "A=1\nSGLANG_DDTREE_VERIFY=on\nB='x y'\n"),
        ("  SGLANG_DDTREE_VERIFY = 'off'\n", "off", "SGLANG_DDTREE_VERIFY=on\n"),
        ("SGLANG_DDTREE_VERIFY=off", "off", "SGLANG_DDTREE_VERIFY=on"),
        ("#SGLANG_DDTREE_VERIFY=off\n", None, "#SGLANG_DDTREE_VERIFY=off\nSGLANG_DDTREE_VERIFY=on\n"),
        ("SGLANG_DDTREE_VERIFY_X=off\n", None, "SGLANG_DDTREE_VERIFY_X=off\nSGLANG_DDTREE_VERIFY=on\n"),
        (
            "SGLANG_DDTREE_VERIFY=on\nSGLANG_DDTREE_VERIFY=off\n",
            "off",
            "SGLANG_DDTREE_VERIFY=on\nSGLANG_DDTREE_VERIFY=on\n",
        ),
        ("A=\N{SNOWMAN}\r\n", None, "A=\N{SNOWMAN}\r\nSGLANG_DDTREE_VERIFY=on\n"),
    ],
)
def test_only_the_variable_changes(text, value, after):
    assert envfile.value(text) == value
    assert envfile.with_value(text, "on") == after
    assert envfile.value(envfile.with_value(after, None)) is None


@pytest.mark.parametrize(
    ("line", "wins"),
    [
        ("ARGS=--ddtree-verify off", True),
        ("ARGS=--ddtree-verify=off", True),
        ("ARGS=--ddtree-verify-modes off,on", False),
        ("# ARGS=--ddtree-verify off", False),
    ],
)
def test_flag_that_wins(line, wins):
    assert envfile.overriding_flag(f"X=1\n{line}\n") is wins


def test_permissions_stay(tmp_path):
    path = tmp_path / "env"
    path.write_text("A=1\n")
    path.chmod(0o640)
    envfile.set_value(path, "on")
    backup = envfile.back_up(path, "now")
    assert {stat.S_IMODE(file.stat().st_mode) for file in (path, backup)} == {0o640}
    assert backup.read_text() == path.read_text() == "A=1\nSGLANG_DDTREE_VERIFY=on\n"


@pytest.mark.parametrize("nameless", [True, False])
def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, nameless):
    path = tmp_path / "env"
    path.write_text("old")
    if not nameless:  # a file system without O_TMPFILE
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY, raising=False)
    atomic.write(path, b"new")
    assert path.read_text() == "new"

    def full(_fd, _content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "_write_all", full)
    with pytest.raises(OSError, match="No space left"):
        atomic.write(path, b"newer")
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["env"]


def test_what_a_kill_left_is_replaced(tmp_path):
    (tmp_path / ".env.sglang-ddtree-new").write_text("half")
    atomic.write(tmp_path / "env", b"whole")
    assert os.listdir(tmp_path) == ["env"]


def test_content_and_name_are_on_the_disk_in_this_order(tmp_path, monkeypatch):
    """After a power cut the file is the old or the new one: content is synced before the rename, the folder after."""
    steps = []
    rename = os.replace

    def sync(descriptor):
        steps.append(("sync", "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else os.fstat(descriptor).st_size))

    def replace(source, target):
        steps.append(("rename", target.name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    atomic.write(tmp_path / "env", b"whole")
    assert steps == [("sync", 5), ("rename", "env"), ("sync", "folder")]

# SPDX-License-Identifier: Apache-2.0
"""The series in two processes gives what it gives in one."""

import os

import pytest
from tiny_upstream import write_patch

from fork import patches
from fork.apply import Tree, apply_series
from fork.halves import apply_series_in_halves

UPSTREAM = {f"pkg/{name}.py": b"x = 0\n" * size for name, size in {"a": 9, "b": 4, "c": 3, "d": 1}.items()}


@pytest.fixture(autouse=True)
def two_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


def append(folder, number: int, *names: str, more: str = "") -> None:
    edits = [f'[[edit]]\nfile = "pkg/{name}.py"\nat = "end"\nafter = "y{number} = 1"\n{more}' for name in names]
    write_patch(folder, "".join(edits), f"{number:04}-of-{'-'.join(names)}.toml")


def content(tree: Tree) -> tuple:
    rows = [(o.patch.name, o.files, o.edits, o.skipped, str(o.error)) for o in tree.outcomes]
    return tree.edited, tree.edited_by, rows


def both(folder, upstream=UPSTREAM, version="1.0") -> tuple[Tree, Tree]:
    series = patches.load_series(folder)
    return apply_series(upstream, series, version), apply_series_in_halves(upstream, series, version)


def test_the_same_tree_in_the_order_of_the_series(tmp_path):
    for number, names in enumerate(["a", "c", "bd", "b", "a", "d"], 1):
        append(tmp_path, number, *names)
    append(tmp_path, 7, "c", more='versions = ">=2"\n')
    whole, halves = both(tmp_path)
    assert content(halves) == content(whole)
    assert whole.originals and not halves.originals, "it ran in one process"
    assert halves.edited_by["pkg/b.py"] == ["0003-of-b-d", "0004-of-b"]


def test_the_pinned_release(pinned, config, tree):
    """``tree`` was applied in one process."""
    series = patches.load_series(config.patches)
    halves = apply_series_in_halves(pinned, series, pinned.version)
    assert not halves.originals, "it ran in one process"
    assert content(halves) == content(tree)


@pytest.mark.parametrize("name", "abcd")
def test_a_failure_in_either_half_is_told_as_in_one(tmp_path, name):
    for number, other in enumerate("abcd", 1):
        append(tmp_path, number, other)
    bad = f'[[edit]]\nfile = "pkg/{name}.py"\nin = "gone"\nat = "end"\nafter = "z = 1"'
    write_patch(tmp_path, bad, "0005-bad.toml")
    whole, halves = both(tmp_path)
    assert len(halves.errors) == 1
    assert content(halves) == content(whole)


def test_a_file_that_is_not_there(tmp_path):
    append(tmp_path, 1, "a")
    append(tmp_path, 2, "aa")
    whole, halves = both(tmp_path)
    assert "upstream has no such file" in str(halves.errors[0]) and "pkg/a.py" in str(halves.errors[0])
    assert content(halves) == content(whole)


def test_one_group_of_files_stays_in_one_process(tmp_path):
    append(tmp_path, 1, "a", "b")
    append(tmp_path, 2, "b", "c")
    whole, halves = both(tmp_path)
    assert content(halves) == content(whole)
    assert halves.originals

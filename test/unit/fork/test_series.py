# SPDX-License-Identifier: Apache-2.0
"""A series of patches: order, isolation of failures, releases, codemods, the mark, a second application."""

import ast
import textwrap

from tiny_upstream import FILE, write_patch

from fork import patches
from fork.apply import apply_series

EDIT = '[[edit]]\nfile = "{file}"\n'


def apply(folder, files, version="1.0"):
    upstream = {file: textwrap.dedent(text).encode() for file, text in files.items()}
    return apply_series(upstream, patches.load_series(folder), version)


def test_later_patches_see_earlier_ones(tmp_path):
    place = EDIT.format(file=FILE)
    write_patch(tmp_path, place + 'at = "end"\nafter = "a = 1"', "0001-first.toml")
    write_patch(tmp_path, place + 'at = {assigns = "a"}\nvalue = "{old} + 1"', "0002-second.toml")
    tree = apply(tmp_path, {FILE: "x = 0\n"})
    mark, text = tree.edited[FILE].decode().split("\n", 1)
    assert text == "x = 0\na = 1 + 1\n"
    assert mark.endswith(": 0001-first, 0002-second")


def test_failed_patch_leaves_no_trace_and_others_go_on(tmp_path):
    other = "pkg/other.py"
    half = EDIT.format(file=FILE) + 'at = "end"\nafter = "half = 1"\n' + EDIT.format(file=other) + 'in = "f"\n'
    write_patch(tmp_path, half + 'at = {calls = "g"}\nbefore = "h()"', "0001-fails.toml")
    write_patch(tmp_path, EDIT.format(file=FILE) + 'at = "end"\nafter = "whole = 1"', "0002-works.toml")
    tree = apply(tmp_path, {FILE: "x = 0\n", other: "def f(): ...\n"})
    assert tree.edited[FILE].decode().partition("\n")[2] == "x = 0\nwhole = 1\n"
    assert list(tree.edited) == [FILE]
    assert [bool(outcome.error) for outcome in tree.outcomes] == [True, False]
    assert "0001-fails, edit 2: pkg/other.py" in str(tree.errors[0])


def test_versions(tmp_path):
    place = EDIT.format(file=FILE) + 'at = "end"\n'
    old, new = 'versions = "<0.5.23"\nafter = "old = 1"\n', 'versions = ">=0.5.23"\nafter = "new = 1"\n'
    write_patch(tmp_path, place + old + place + new)
    for version, name in (("0.5.22", "old"), ("0.5.22.post1", "old"), ("0.5.23", "new"), ("0.5.24rc1", "new")):
        tree = apply(tmp_path, {FILE: "x = 0\n"}, version)
        assert tree.edited[FILE].decode().endswith(f"x = 0\n{name} = 1\n")
        assert (tree.outcomes[0].edits, tree.outcomes[0].skipped) == (1, 1)


def test_second_application_gives_the_same_bytes(tmp_path):
    place = EDIT.format(file=FILE) + 'in = "f"\n'
    anchor = 'at = {calls = "g"}\n'
    write_patch(tmp_path, place + anchor + 'before = "a()"', "0001-a.toml")
    write_patch(tmp_path, place + anchor + 'before = "b()"', "0002-b.toml")
    write_patch(tmp_path, place + anchor + 'guard = "c"', "0003-c.toml")
    write_patch(tmp_path, place + anchor + 'guard = "d"', "0004-d.toml")
    for number, name in ((5, "p"), (6, "q")):
        action = f'at = {{tests = "x"}}\nbranch = {{if = "{name}", do = "return"}}'
        write_patch(tmp_path, place + action, f"000{number}-{name}.toml")
    once = apply(tmp_path, {FILE: "def f():\n    g()\n    if x:\n        h()\n"})
    assert not once.errors
    twice = apply(tmp_path, {FILE: once.edited[FILE].decode()})
    assert not twice.errors
    assert FILE not in twice.edited, twice.edited[FILE].decode()


def test_codemod(tmp_path):
    (tmp_path / "0001-rename.py").write_text(
        textwrap.dedent(f"""\
        import libcst as cst
        WHY = "w"
        NEEDS = "n"
        RETIRE = "r"
        FILES = ["{FILE}"]

        def apply(path, module):
            class Rename(cst.CSTTransformer):
                def leave_Name(self, old, new):
                    return new.with_changes(value="y") if new.value == "x" else new
            return module.visit(Rename())
        """)
    )
    tree = apply(tmp_path, {FILE: "x = 0  # keep\n"})
    assert tree.edited[FILE].decode().partition("\n")[2] == "y = 0  # keep\n"
    assert tree.edited_by == {FILE: ["0001-rename"]}


def test_codemod_that_fails(tmp_path):
    header = f'WHY = "w"\nNEEDS = "n"\nRETIRE = "r"\nFILES = ["{FILE}"]\n'
    (tmp_path / "0001-bad.py").write_text(header + "def apply(path, module):\n    raise KeyError('gone')\n")
    tree = apply(tmp_path, {FILE: "x = 0\n"})
    assert str(tree.errors[0]) == "0001-bad: the codemod failed: KeyError: 'gone'"


def test_shebang_stays_first(tmp_path):
    write_patch(tmp_path, EDIT.format(file=FILE) + 'at = "end"\nafter = "a = 1"')
    tree = apply(tmp_path, {FILE: "#!/usr/bin/env python3\nx = 0\n"})
    lines = tree.edited[FILE].decode().splitlines()
    assert lines[0] == "#!/usr/bin/env python3"
    assert lines[1].startswith("# Modified by sglang-ddtree")


def test_only_edited_files_are_read(tmp_path):
    write_patch(tmp_path, EDIT.format(file=FILE) + 'at = "end"\nafter = "a = 1"')

    class Reads(dict):
        def __init__(self, files):
            super().__init__(files)
            self.asked = []

        def __getitem__(self, file):
            self.asked.append(file)
            return super().__getitem__(file)

    upstream = Reads({FILE: b"x = 0\n", "pkg/broken.py": b"def ("})
    assert not apply_series(upstream, patches.load_series(tmp_path), "1.0").errors
    assert set(upstream.asked) == {FILE}


def test_this_series_applies_and_is_idempotent(config, pinned, tree):
    """``tree`` raises if a patch of this repository fails."""
    again = apply_series(
        {**dict.fromkeys(pinned, b""), **tree.edited}, patches.load_series(config.patches), config.version
    )
    assert [str(error) for error in again.errors] == []
    assert again.edited == {}
    for file, content in tree.edited.items():
        ast.parse(content, filename=file)

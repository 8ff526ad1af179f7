# SPDX-License-Identifier: Apache-2.0
"""What a patch file may say, and what is told when it says something else."""

import pytest
from tiny_upstream import FILE, HEADER, write_patch

from fork import patches
from fork.errors import PatchFormatError

PLACE = f'[[edit]]\nfile = "{FILE}"\n'

WRONG = {
    "not TOML": ("edit = [", "not valid TOML"),
    "no edit": ("", r"there is no \[\[edit\]\]"),
    "a key of its own": ('author = "x"\n' + PLACE + 'import = "import a"', "unknown key `author`"),
    "an edit with a key of its own": (PLACE + 'import = "import a"\nline = 3', "edit 1: unknown key `line`"),
    "two actions": (PLACE + 'import = "import a"\nfunction = "def f(): ..."', "exactly one thing"),
    "no action": (PLACE, "exactly one thing, this one has no action"),
    "no file": ('[[edit]]\nimport = "import a"', "`file` is missing"),
    "a number for a file": ('[[edit]]\nfile = 3\nimport = "import a"', "`file` must be a string"),
    "a word for every": (PLACE + 'every = "yes"\nimport = "import a"', "`every` must be true or false"),
    "an anchor that is a word": (PLACE + 'at = "middle"\nbefore = "x"', 'is an anchor table, "start" or "end"'),
    "an anchor with an unknown key": (PLACE + 'at = {defines = "x"}\nbefore = "y"', "unknown key `defines`; known are"),
    "an empty anchor": (PLACE + 'at = {}\nbefore = "y"', "must be a table of strings"),
    "an anchor of nothing": (PLACE + 'at = {calls = ""}\nbefore = "y"', "`calls` of `at` is empty"),
    "no anchor": (PLACE + 'before = "y"', "`before` needs `at`"),
    "the wrong anchor": (PLACE + 'at = {calls = "f"}\nvalue = "1"', "`value` needs an anchor with `assigns`"),
    "an anchor too many": (PLACE + 'in = "C"\nat = {calls = "f"}\nmember = "A = 1"', "`member` takes no such `at`"),
    "start for a value": (PLACE + 'at = "start"\nvalue = "1"', "goes with `before` or `after` only"),
    "within without an anchor": (PLACE + 'at = "end"\nwithin = {tests = "x"}\nafter = "y"', "`at` is not one"),
    "append to nothing": (PLACE + 'append = "1"', "`append` needs `in` or at"),
    "method of nothing": (PLACE + 'method = "def f(self): ..."', "`method` needs `in`"),
    "a branch without do": (PLACE + 'at = {tests = "x"}\nbranch = {if = "y"}', "`branch` lacks `do`"),
    "an argument by name and place": (
        PLACE + 'at = {calls = "f"}\nargument = {name = "a", position = 0, value = "1"}',
        "either `name` or `position`",
    ),
    "an empty text": (PLACE + 'at = "end"\nafter = " "', "`after` must be a string, not empty"),
    "a list where one is meant": (PLACE + 'import = ["import a"]', "`import` must be a string"),
    "versions that are none": (PLACE + 'versions = "new"\nimport = "import a"', "not a PEP 440 specifier: 'new'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_patch(tmp_path, case):
    text, message = WRONG[case]
    path = write_patch(tmp_path, text)
    with pytest.raises(PatchFormatError, match=message) as raised:
        patches.load_series(tmp_path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value).partition("not valid TOML")[0]


@pytest.mark.parametrize("key", ["why", "needs", "retire"])
def test_header_is_required(tmp_path, key):
    header = HEADER.replace(f"{key} = ", f"{key}_ = ")
    (tmp_path / "0001-a.toml").write_text(header + PLACE + 'import = "import a"')
    with pytest.raises(PatchFormatError):
        patches.load_series(tmp_path)
    (tmp_path / "0001-a.toml").write_text(HEADER.replace(f"{key} = ", f'{key} = "" # ') + PLACE + 'import = "import a"')
    with pytest.raises(PatchFormatError, match=f"`{key}` is missing or empty"):
        patches.load_series(tmp_path)


def test_number_twice(tmp_path):
    write_patch(tmp_path, PLACE + 'import = "import a"', "0001-a.toml")
    write_patch(tmp_path, PLACE + 'import = "import a"', "0001-b.toml")
    with pytest.raises(PatchFormatError, match=r"0001-b.toml: number 0001 is taken by 0001-a.toml"):
        patches.load_series(tmp_path)


@pytest.mark.parametrize("name", ["1-a.toml", "0001_a.toml", "0001-A.toml", "0001-a.patch", "notes.txt"])
def test_wrong_name(tmp_path, name):
    write_patch(tmp_path, PLACE + 'import = "import a"', name)
    with pytest.raises(PatchFormatError, match="a patch is named"):
        patches.load_series(tmp_path)


def test_order_is_by_number_and_other_files_do_not_count(tmp_path):
    for name in ("0210-b.toml", "0100-z.toml", "0200-a.toml"):
        write_patch(tmp_path, PLACE + 'import = "import a"', name)
    (tmp_path / "README.md").write_text("words")
    (tmp_path / ".0001-hidden.toml.swp").write_text("x")
    assert [patch.name for patch in patches.load_series(tmp_path)] == ["0100-z", "0200-a", "0210-b"]


def test_crlf_is_the_same_patch(tmp_path):
    path = write_patch(tmp_path, PLACE + 'at = "end"\nafter = """\nif x:\n    y = 1\n"""')
    unix = patches.load(path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    dos = patches.load(path)
    assert b"\r\n" in path.read_bytes()
    assert dos == unix


def test_unreadable(tmp_path):
    path = tmp_path / "0001-a.toml"
    path.write_bytes(b"why = '\xff'")
    with pytest.raises(PatchFormatError, match="cannot be read"):
        patches.load_series(tmp_path)

# SPDX-License-Identifier: Apache-2.0
"""Short ways to run the fork tool on text."""

import textwrap
import tomllib
from pathlib import Path

from fork import patches
from fork.apply import Tree, apply_series

FILE = "pkg/mod.py"
HEADER = 'why = "w"\nneeds = "n"\nretire = "r"\n'


def write_patch(folder: Path, edits: str, name: str = "0001-a.toml") -> Path:
    path = folder / name
    path.write_text(HEADER + textwrap.dedent(edits))
    return path


def run(folder: Path, source: str, edits: str, version: str = "1.0") -> Tree:
    """Applies one patch with the given ``[[edit]]`` tables to one file of upstream."""
    write_patch(folder, edits)
    return apply_series({FILE: textwrap.dedent(source).encode()}, patches.load_series(folder), version)


def edited(folder: Path, source: str, edit: str) -> str:
    """The edited file without the line that marks it; raises the edit's error."""
    tree = run(folder, source, f'[[edit]]\nfile = "{FILE}"\n' + textwrap.dedent(edit))
    for error in tree.errors:
        raise error
    if FILE not in tree.edited:
        return textwrap.dedent(source)
    text = tree.edited[FILE].decode()
    assert tree.edited_by == {FILE: ["0001-a"]}
    assert text.startswith("# Modified by sglang-ddtree"), "the mark of a modified file is missing"
    return text.partition("\n")[2]


def toml_of(text: str) -> dict:
    return tomllib.loads(textwrap.dedent(text))

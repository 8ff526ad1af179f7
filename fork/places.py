# SPDX-License-Identifier: Apache-2.0
"""On which lines of upstream the edits find their places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import libcst as cst

from fork import anchors, symbols
from fork import cst as tree
from fork.cst import Path, Site
from fork.errors import EditError
from fork.patches import Edit

_MARK = "#@place-{}@"


def sites(module: cst.Module, edit: Edit) -> list[Site]:
    """What an edit is anchored to in a file: the statements that its anchor describes, or the symbol that holds it.

    None where the anchor is something that an earlier patch inserts.
    """
    try:
        scopes = symbols.resolve(module, edit.symbol, edit.file)
    except EditError:
        return []
    if not isinstance(edit.at, dict):
        return scopes
    found = {match.site.path: match.site for scope in scopes for match in anchors.find(scope, edit.at, edit.within)}
    return list(found.values())


def lines(module: cst.Module, places: Sequence[Site]) -> list[int]:
    """The line of each place. A mark is put above every one and looked up in the text: LibCST's own positions cost a
    walk over the whole file."""
    marked = module
    for number, place in enumerate(places):
        path = _statement(module, place.path)
        if path:
            marked = tree.replace(marked, path, lambda node: _with_mark(node, number))
    found: dict[int, int] = {}
    for index, line in enumerate(marked.code.splitlines()):
        for number in re.findall(_MARK.format(r"(\d+)"), line):
            found[int(number)] = index - len(found) + 1
    return [found.get(number, 1) for number in range(len(places))]


def _statement(module: cst.Module, path: Path) -> Path:
    """The path to the innermost statement around a node that can have a comment above it."""
    while path and not hasattr(tree.node_at(module, path), "leading_lines"):
        path = path[:-1]
    return path


def _with_mark(node: Any, number: int) -> Any:
    mark = cst.EmptyLine(comment=cst.Comment(_MARK.format(number)))
    return node.with_changes(leading_lines=[*node.leading_lines, mark])

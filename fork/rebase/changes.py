# SPDX-License-Identifier: Apache-2.0
"""What upstream changed inside the functions that we edit: an edit may still find its place and no longer do its work.

The text is printed when asked for; the repository holds none of it.
"""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from fork.apply import Tree
from fork.carried import signatures
from fork.patches import Edit

_CONTEXT = 1


@dataclass
class Change:
    """One function, class or statement that we edit, and how it differs between two releases."""

    file: str
    symbol: str
    patches: list[str]
    plus: int
    minus: int
    diff: list[str]


def compare(series: Tree, old: Mapping[str, bytes], new: Mapping[str, bytes], version: str) -> list[Change]:
    edited: dict[tuple[str, str], list[str]] = {}
    for outcome in series.outcomes:
        for edit in outcome.patch.edits:
            symbol = _function(edit, old)
            if symbol and edit.applies_to(version):
                names = edited.setdefault((edit.file, symbol), [])
                if outcome.patch.name not in names:
                    names.append(outcome.patch.name)
    changes = []
    for (file, symbol), names in sorted(edited.items()):
        if file in old and file in new:
            before, after = _source(old[file], symbol), _source(new[file], symbol)
            if before and after and before != after:
                changes.append(_change(file, symbol, names, before, after))
    return changes


def _function(edit: Edit, old: Mapping[str, bytes]) -> str:
    """The symbol whose text an edit depends on. An edit that only adds a member to a class depends on no text."""
    return "" if edit.action in ("method", "field", "function", "import") else edit.symbol


def _source(content: bytes, symbol: str) -> list[str]:
    """The lines of a dotted symbol, from its first decorator on; none if it is not there."""
    text = content.decode()
    scope: list[ast.stmt] = list(signatures.flat(ast.parse(text).body))
    node: ast.stmt | None = None
    for name in symbol.split("."):
        node = next((item for item in scope if name in _names(item)), None)
        if node is None:
            return []
        scope = list(signatures.flat(getattr(node, "body", [])))
    assert node is not None
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno])).splitlines()


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.ClassDef, *signatures.FUNCTIONS)):
        return [node.name]
    return list(signatures.assigned(node))


def _change(file: str, symbol: str, names: list[str], before: list[str], after: list[str]) -> Change:
    diff = list(difflib.unified_diff(before, after, lineterm="", n=_CONTEXT))[2:]
    plus = sum(line.startswith("+") for line in diff)
    minus = sum(line.startswith("-") for line in diff)
    return Change(file, symbol, names, plus, minus, diff)

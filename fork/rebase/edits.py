# SPDX-License-Identifier: Apache-2.0
"""What becomes of each edit in another release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import libcst as cst

from fork import anchors, places
from fork.apply import Outcome, Tree
from fork.cst import Site
from fork.errors import EditError
from fork.patches import Edit

_ELSEWHERE = 8
"""So many other files are searched for an edit whose place is gone: those that define its symbol come first."""


@dataclass
class Row:
    """``state`` is applied, moved (``old`` and ``new`` say where), ambiguous, gone, unfit (the place is there, but not
    as the edit needs it) or skipped (not for that release)."""

    patch: str
    number: int
    edit: Edit
    state: str
    old: str = ""
    new: str = ""
    problem: str = ""
    candidates: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.state in ("applied", "skipped") or (self.state == "moved" and not self.problem)

    @property
    def what(self) -> str:
        at = f" at {anchors.describe(self.edit.at)}" if self.edit.at else ""
        return f"{self.edit.action} in {self.edit.symbol or 'the file'}{at}"


def compare(old: Tree, new: Tree, upstream: Mapping[str, bytes], version: str, *, with_lines: bool = True) -> list[Row]:
    """A row for each edit: ``old`` and ``new`` are the same series applied to two releases, ``upstream`` is the second
    one."""
    lines_before, lines_after = (_lines(old), _lines(new)) if with_lines else ({}, {})
    rows = []
    for outcome in new.outcomes:
        for number, edit in enumerate(outcome.patch.edits, 1):
            key = (outcome.patch.name, number)
            row = _row(outcome, number, edit, upstream, version)
            row.old = lines_before.get(key, "")
            if row.state == "applied":
                row.new = lines_after.get(key, "")
                if row.old and row.new and row.old != row.new:
                    row.state = "moved"
            rows.append(row)
        if outcome.patch.codemod:
            state = "unfit" if outcome.error else "applied"
            edit = Edit(", ".join(outcome.files), "codemod", "")
            rows.append(Row(outcome.patch.name, 1, edit, state, problem=str(outcome.error or "")))
    return rows


def _row(outcome: Outcome, number: int, edit: Edit, upstream: Mapping[str, bytes], version: str) -> Row:
    if not edit.applies_to(version):
        return Row(outcome.patch.name, number, edit, "skipped")
    error = outcome.failed.get(number)
    if error is None:
        return Row(outcome.patch.name, number, edit, "applied")
    row = Row(outcome.patch.name, number, edit, error.kind, problem=error.problem, candidates=list(error.candidates))
    if error.kind == "gone":
        found = list(_elsewhere(edit, upstream))
        if found:
            row.state, row.candidates = "moved", found
    return row


def _lines(tree: Tree) -> dict[tuple[str, int], str]:
    """``file:line`` of each edit that has a place in upstream's own text."""
    by_file: dict[str, list[tuple[tuple[str, int], Site]]] = {}
    for outcome in tree.outcomes:
        for number, edit in enumerate(outcome.patch.edits, 1):
            if edit.file in tree.originals and number not in outcome.failed:
                for site in places.sites(tree.originals[edit.file], edit)[:1]:
                    by_file.setdefault(edit.file, []).append(((outcome.patch.name, number), site))
    found: dict[tuple[str, int], str] = {}
    for file, keyed in by_file.items():
        lines = places.lines(tree.originals[file], [site for _, site in keyed])
        found.update({key: f"{file}:{line}" for (key, _), line in zip(keyed, lines, strict=True)})
    return found


def _elsewhere(edit: Edit, upstream: Mapping[str, bytes]) -> Iterator[str]:
    """Other files in which the edit would find exactly one place, as ``file:line``."""
    sought = (edit.symbol.rpartition(".")[2] or next(iter(edit.at.values()), "")) if isinstance(edit.at, dict) else ""
    sought = (sought or edit.symbol.rpartition(".")[2]).rpartition(".")[2]
    if not sought:
        return
    name = sought.encode()
    package = edit.file.partition("/")[0]
    files = [
        file
        for file in upstream
        if file.endswith(".py") and file.startswith(f"{package}/") and file != edit.file and name in upstream[file]
    ]
    defines = (b"def " + name, b"class " + name, b"\n" + name + b" =", b"\n" + name + b":")
    files.sort(key=lambda file: not any(text in upstream[file] for text in defines))
    for file in files[:_ELSEWHERE]:
        module = cst.parse_module(upstream[file])
        try:
            found = places.sites(module, replace(edit, file=file))
        except EditError:
            continue
        if len(found) == 1:
            yield f"{file}:{places.lines(module, found)[0]}"

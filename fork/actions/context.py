# SPDX-License-Identifier: Apache-2.0
"""One edit at work on one file: what it has found, and the file as it stands."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

from fork import anchors, places, symbols
from fork import cst as tree
from fork.cst import Path, Site
from fork.errors import EditError
from fork.patches import Edit


class Context:
    """Finds, reads and replaces for the actions; ``module`` is the file with what they have done so far.

    ``again`` says that the file carries this fork's mark: what an edit would insert may then stand some way off its
    anchor, with the insertions of other edits between. In a fresh file only what stands beside the anchor counts as
    there, lest an equal statement of upstream's own makes the edit a silent no-op.
    """

    def __init__(self, module: cst.Module, edit: Edit, again: bool):
        self.module = module
        self.edit = edit
        self.again = again
        self.scopes = symbols.resolve(module, edit.symbol, edit.file)

    # ---- finding

    def fail(self, problem: str, candidates: Sequence[str] = (), kind: str = "unfit") -> EditError:
        at = self.edit.at
        anchor = anchors.describe(at) if at is not None else ""
        if self.edit.within:
            anchor += f" within {anchors.describe(self.edit.within)}"
        return EditError(self.edit.file, problem, self.edit.symbol, anchor, tuple(candidates), kind=kind)

    def one_scope(self) -> Site:
        if len(self.scopes) > 1:
            lines = self._lines(self.scopes)
            raise self.fail(f"the symbol is defined {len(self.scopes)} times, {lines}", kind="ambiguous")
        return self.scopes[0]

    def matches(self, skip: Callable[[Site], bool] = lambda site: False) -> list[anchors.Match]:
        """The anchored statements but for those that this edit brought itself (``skip``), the last one first.

        A change of one leaves the paths of the following ones valid. Raises EditError for none, or for several unless
        the edit says ``every``.
        """
        assert isinstance(self.edit.at, dict)
        found = {}
        for scope in self.scopes:
            for match in anchors.find(scope, self.edit.at, self.edit.within):
                if not skip(match.site):
                    found[match.site.path] = match
        if not found:
            near = [name for scope in self.scopes for name in anchors.nearest(scope, self.edit.at)]
            raise self.fail("no statement is like this", list(dict.fromkeys(near))[:3], "gone")
        matches = list(found.values())
        if len(matches) > 1 and not self.edit.every:
            lines = self._lines([match.site for match in matches])
            remedy = "narrow it with `in` or `within`, or say every = true"
            raise self.fail(f"{len(matches)} statements are like this, {lines}; {remedy}", kind="ambiguous")
        return matches[::-1]

    def found(self, key: str) -> list[Site]:
        """The nodes that ``key`` of the anchor found in the anchored statements, the last one first."""
        sites = [site for match in self.matches() for site in match.found[key][::-1]]
        if len(sites) > 1 and not self.edit.every:
            raise self.fail(
                f"the statement has {len(sites)} of these, {self._lines(sites)}; say every = true to edit all",
                kind="ambiguous",
            )
        return sites

    def _lines(self, sites: Sequence[Site]) -> str:
        return "lines " + ", ".join(map(str, sorted(places.lines(self.module, sites))))

    def replace(self, path: Path, change: Callable[[Any], Any]) -> None:
        self.module = tree.replace(self.module, path, change)

    # ---- reading what the edit brings

    def statements(self, text: str) -> list[Any]:
        try:
            snippet = tree.parse(textwrap.dedent(text).strip("\n") + "\n", self.module.config_for_parsing)
        except cst.ParserSyntaxError as error:
            raise self.fail(f"`{self.edit.action}`, line {error.raw_line}, is not valid Python") from error
        if not snippet.body:
            raise self.fail(f"`{self.edit.action}` has no statement")
        first = snippet.body[0]
        header = [line for line in snippet.header if line.comment]
        return [first.with_changes(leading_lines=[*header, *first.leading_lines]), *snippet.body[1:]]

    def one_statement(self, kinds: Any, what: str) -> Any:
        statements = self.statements(self.edit.argument)
        if len(statements) != 1 or not isinstance(statements[0], kinds):
            raise self.fail(f"`{self.edit.action}` must be {what}")
        return statements[0]

    def expression(self, text: str) -> cst.BaseExpression:
        try:
            return cst.parse_expression(textwrap.dedent(text).strip(), self.module.config_for_parsing)
        except cst.ParserSyntaxError as error:
            raise self.fail(f"`{self.edit.action}`: {text.strip()!r} is not a valid expression") from error


def short(node: cst.CSTNode) -> str:
    text = " ".join(tree.code(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."

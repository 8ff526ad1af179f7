# SPDX-License-Identifier: Apache-2.0
"""Places in a LibCST tree, and changing them without touching anything else.

A ``Path`` leads from a module to a node as (field, index) steps, so one node is replaced by rebuilding only its
ancestors. LibCST's own transformers visit the whole tree for each change, too slow for many edits of large files.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import libcst as cst

Path = tuple[tuple[str, int | None], ...]

_BLOCK_FIELDS = ("body", "handlers", "cases", "orelse", "finalbody")
_FORMATTING = (
    "whitespace",
    "leading_lines",
    "lines_",
    "header",
    "footer",
    "indent",
    "semicolon",
    "comma",
    "equal",
    "lpar",
    "rpar",
    "asynchronous",
)
DEFINITIONS = (cst.FunctionDef, cst.ClassDef)
SUITES = (cst.IndentedBlock, cst.SimpleStatementSuite)


class Site(NamedTuple):
    """A node and the path to it."""

    path: Path
    node: Any

    @property
    def is_elif(self) -> bool:
        return bool(self.path) and self.path[-1][0] == "orelse"


def parse(source: str, config: cst.PartialParserConfig | None = None) -> cst.Module:
    return cst.parse_module(source, config or cst.PartialParserConfig())


def node_at(module: cst.Module, path: Path) -> Any:
    node: Any = module
    for field, index in path:
        node = getattr(node, field)
        if index is not None:
            node = node[index]
    return node


def replace(module: cst.Module, path: Path, change: Callable[[Any], Any]) -> cst.Module:
    """Puts ``change(node)`` where ``node`` is; ``change`` may return a list, which is spliced into the parent's
    list."""

    def rebuild(node: Any, path: Path) -> Any:
        if not path:
            return change(node)
        (field, index), rest = path[0], path[1:]
        child = getattr(node, field)
        if index is None:
            return node.with_changes(**{field: rebuild(child, rest)})
        new = rebuild(child[index], rest)
        items = [*child[:index], *(new if isinstance(new, list) else [new]), *child[index + 1 :]]
        return node.with_changes(**{field: items})

    result: cst.Module = rebuild(module, path)
    return result


def statements(site: Site, *, into_definitions: bool = True) -> Iterator[Site]:
    """All statements inside a module, definition or compound statement, in the order of the text, nested ones
    after the one that holds them."""
    for field in _BLOCK_FIELDS:
        child = getattr(site.node, field, None)
        if isinstance(child, SUITES):
            yield from _suite(Site((*site.path, (field, None)), child), into_definitions)
        elif isinstance(child, cst.If):
            elif_site = Site((*site.path, (field, None)), child)
            yield elif_site
            yield from statements(elif_site, into_definitions=into_definitions)
        elif isinstance(child, cst.CSTNode) and not isinstance(child, cst.BaseExpression):
            yield from statements(Site((*site.path, (field, None)), child), into_definitions=into_definitions)
        elif isinstance(child, (list, tuple)):
            for index, item in enumerate(child):
                item_site = Site((*site.path, (field, index)), item)
                if isinstance(item, cst.BaseStatement):
                    yield from _statement(item_site, into_definitions)
                elif not isinstance(item, cst.BaseSmallStatement):
                    yield from statements(item_site, into_definitions=into_definitions)


def _suite(site: Site, into_definitions: bool) -> Iterator[Site]:
    if isinstance(site.node, cst.SimpleStatementSuite):  # "if x: return": the suite stands for its one line
        yield site
        return
    for index, item in enumerate(site.node.body):
        yield from _statement(Site((*site.path, ("body", index)), item), into_definitions)


def _statement(site: Site, into_definitions: bool) -> Iterator[Site]:
    yield site
    if into_definitions or not isinstance(site.node, DEFINITIONS):
        yield from statements(site, into_definitions=into_definitions)


@cache
def _expression_fields(kind: type) -> tuple[str, ...]:
    return tuple(name for name in kind.__dataclass_fields__ if not name.startswith(_FORMATTING))  # type: ignore[attr-defined]


def own_nodes(site: Site) -> Iterator[Site]:
    """The nodes that belong to a statement itself: not those of the statements that it holds."""

    def walk(path: Path, node: cst.CSTNode) -> Iterator[Site]:
        for field in _expression_fields(type(node)):
            child = getattr(node, field)
            if isinstance(child, cst.CSTNode):
                if isinstance(child, (*SUITES, cst.BaseStatement, cst.Else, cst.Finally)):
                    continue
                here = (*path, (field, None))
                yield Site(here, child)
                yield from walk(here, child)
            elif isinstance(child, (list, tuple)):
                for index, item in enumerate(child):
                    if not isinstance(item, cst.CSTNode) or isinstance(
                        item, (cst.BaseStatement, cst.ExceptHandler, cst.ExceptStarHandler, cst.MatchCase)
                    ):
                        continue
                    here = (*path, (field, index))
                    yield Site(here, item)
                    yield from walk(here, item)

    yield from walk(site.path, site.node)


def small_statements(site: Site) -> Iterator[Site]:
    """The small statements of one line (``a = 1; b = 2``); none for a compound statement."""
    if isinstance(site.node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
        for index, small in enumerate(site.node.body):
            yield Site((*site.path, ("body", index)), small)


# ---- comparing code, formatting aside


def code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def normal(expression: cst.CSTNode | str) -> str:
    """The text of an expression in one spelling, whatever its quotes, spaces and line breaks.

    Unparsable text is returned as it is.
    """
    text = expression if isinstance(expression, str) else code(expression)
    try:
        return ast.unparse(ast.parse(f"({text}\n)", mode="eval"))
    except SyntaxError:
        return text.strip()


def normal_statements(nodes: Sequence[cst.CSTNode]) -> str:
    """Likewise for statements; comments and blank lines do not count."""
    return ast.dump(ast.parse(textwrap.dedent(cst.Module(body=list(nodes)).code)))  # type: ignore[arg-type]


def same_statements(left: Sequence[cst.CSTNode], right: Sequence[cst.CSTNode]) -> bool:
    if [type(node) for node in left] != [type(node) for node in right]:
        return False  # far cheaper than printing both
    return normal_statements(left) == normal_statements(right)

# SPDX-License-Identifier: Apache-2.0
"""Places in the body of a module, class or function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

from fork import cst as tree
from fork.actions.context import Context
from fork.cst import Path


def put(context: Context, path: Path, body: Sequence[Any], index: int, new: Sequence[Any]) -> None:
    """Inserts statements at ``index`` of the body of the module or block at ``path``."""
    context.replace(path, lambda block: block.with_changes(body=[*body[:index], *new, *body[index:]]))


def smalls(statement: Any) -> Sequence[Any]:
    return statement.body if isinstance(statement, cst.SimpleStatementLine) else ()


def after_docstring(body: Sequence[Any]) -> int:
    """The first place where a statement may stand: after the docstring and after imports from ``__future__``."""
    index = 0
    if body and isinstance(expression := next(iter(smalls(body[0])), None), cst.Expr):
        index = int(isinstance(expression.value, (cst.SimpleString, cst.ConcatenatedString)))
    while index < len(body) and any(module == "__future__" for module, _, _ in import_items(body[index])):
        index += 1
    return index


def import_items(statement: Any) -> list[tuple[str, str, str]]:
    """(module, name, name that is bound) of each thing that a line imports."""
    items: list[tuple[str, str, str]] = []
    for small in smalls(statement):
        if isinstance(small, cst.ImportFrom):
            module = "." * len(small.relative) + (tree.code(small.module) if small.module else "")
            if isinstance(small.names, cst.ImportStar):
                items.append((module, "*", "*"))
                continue
            items += [(module, tree.code(alias.name), _bound(alias)) for alias in small.names]
        elif isinstance(small, cst.Import):
            items += [("", tree.code(alias.name), _bound(alias)) for alias in small.names]
    return items


def _bound(alias: cst.ImportAlias) -> str:
    return tree.code(alias.asname.name if alias.asname else alias.name)


def spaced(definition: Any, blank_lines: int) -> Any:
    comments = [line for line in definition.leading_lines if line.comment]
    return definition.with_changes(leading_lines=[*[cst.EmptyLine(indent=False)] * blank_lines, *comments])


def has_run(body: Sequence[Any], run: Sequence[Any]) -> bool:
    return any(tree.same_statements(body[i : i + len(run)], run) for i in range(len(body) - len(run) + 1))

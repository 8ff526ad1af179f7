# SPDX-License-Identifier: Apache-2.0
"""``member``, ``field``, ``method``, ``function`` and ``import``: what a class or a module gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

from fork import cst as tree
from fork import symbols
from fork.actions import bodies
from fork.actions.context import Context
from fork.cst import Path, Site


def member(context: Context) -> None:
    _add_assignment(context, (cst.Assign,), "one assignment, e.g. `NAME = auto()`")


def field(context: Context) -> None:
    _add_assignment(context, (cst.Assign, cst.AnnAssign), "one field, e.g. `name: int = 0`")


def _add_assignment(context: Context, kinds: tuple[type, ...], what: str) -> None:
    path, body = _class_body(context)
    new = context.one_statement(cst.SimpleStatementLine, what)
    if not _names_of(new):
        raise context.fail(f"`{context.edit.action}` must be {what}")
    if _is_defined(context, body, new):
        return
    alike = [i + 1 for i, line in enumerate(body) if any(isinstance(small, kinds) for small in bodies.smalls(line))]
    bodies.put(context, path, body, max(alike, default=bodies.after_docstring(body)), [new])


def method(context: Context) -> None:
    path, body = _class_body(context)
    new = context.one_statement(cst.FunctionDef, "one method")
    if not _is_defined(context, body, new):
        bodies.put(context, path, body, len(body), [bodies.spaced(new, 1)])


def function(context: Context) -> None:
    body: list[Any] = list(context.module.body)
    new = context.one_statement(tree.DEFINITIONS, "one function or class")
    if not _is_defined(context, body, new):
        # A main guard runs the file; what follows it would be defined too late.
        index = len(body) - 1 if body and _is_main_guard(body[-1]) else len(body)
        bodies.put(context, (), body, index, [bodies.spaced(new, 2)])


def import_(context: Context) -> None:
    new = context.one_statement(cst.SimpleStatementLine, "one import")
    items = bodies.import_items(new)
    if len(new.body) != 1 or not items:
        raise context.fail("`import` must be one import")
    body: list[Any] = list(context.module.body)
    if set(items) <= {item for statement in body for item in bodies.import_items(statement)}:
        return
    first_definition = next((i for i, line in enumerate(body) if isinstance(line, tree.DEFINITIONS)), len(body))
    imports = [i + 1 for i in range(first_definition) if bodies.import_items(body[i])]
    index = max(imports, default=bodies.after_docstring(body))
    bodies.put(context, (), body, index, [new if imports else bodies.spaced(new, min(index, 1))])


def _class_body(context: Context) -> tuple[Path, list[Any]]:
    scope = context.one_scope()
    if not isinstance(scope.node, cst.ClassDef) or not isinstance(scope.node.body, cst.IndentedBlock):
        raise context.fail(f"`{context.edit.action}` needs a class with a body of its own")
    return (*scope.path, ("body", None)), list(scope.node.body.body)


def _is_defined(context: Context, body: Sequence[Any], new: Any) -> bool:
    """Whether a body has this definition; raises if it has another one of the same name."""
    names = _names_of(new)
    for statement in body:
        if names & _names_of(statement):
            if tree.same_statements([statement], [new]):
                return True
            raise context.fail(f"{', '.join(sorted(names))} is defined already, and otherwise")
    return False


def _names_of(statement: Any) -> set[str]:
    if isinstance(statement, tree.DEFINITIONS):
        return {statement.name.value}
    return set(symbols.assigned_names(Site((), statement)))


def _is_main_guard(statement: Any) -> bool:
    return isinstance(statement, cst.If) and tree.normal(statement.test).startswith("__name__ ==")

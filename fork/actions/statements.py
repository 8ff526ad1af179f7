# SPDX-License-Identifier: Apache-2.0
"""``before``, ``after``, ``branch`` and ``guard``: statements beside or around the anchored one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst

from fork import cst as tree
from fork.actions import bodies
from fork.actions.context import Context
from fork.cst import Path, Site


def insert(context: Context) -> None:
    new = context.statements(context.edit.argument)
    is_before = context.edit.action == "before"
    if isinstance(context.edit.at, str):
        _insert_at_edge(context, new)
        return
    for match in context.matches(skip=lambda site: _is_in_run(context, site, new)):
        site = match.site
        if site.is_elif:
            raise context.fail("the anchor is an `elif`, which has no place beside it; use `branch` or its first `if`")
        if isinstance(site.node, cst.SimpleStatementSuite):
            line = cst.SimpleStatementLine(site.node.body)
            context.replace(site.path, lambda suite: cst.IndentedBlock([*new, line] if is_before else [line, *new]))
            continue
        siblings, index = _siblings(context, site)
        beside = siblings[:index][-len(new) :] if is_before else siblings[index + 1 :][: len(new)]
        if not tree.same_statements(beside, new) and not (context.again and _stands_nearby(context, site, new)):
            context.replace(site.path, lambda node: [*new, node] if is_before else [node, *new])


def _insert_at_edge(context: Context, new: list[Any]) -> None:
    scope = context.one_scope()
    path: Path
    if isinstance(scope.node, cst.Module):
        path, body = (), list[Any](scope.node.body)
    elif isinstance(scope.node, tree.DEFINITIONS) and isinstance(scope.node.body, cst.IndentedBlock):
        path, body = (*scope.path, ("body", None)), list(scope.node.body.body)
    else:
        raise context.fail("only a module, function or class with a body of its own has a start and an end")
    at_start = context.edit.at == "start"
    index = bodies.after_docstring(body) if at_start else len(body)
    beside = body[index : index + len(new)] if at_start else body[-len(new) :]
    if not tree.same_statements(beside, new) and not (context.again and bodies.has_run(body, new)):
        bodies.put(context, path, body, index, new)


def _siblings(context: Context, site: Site) -> tuple[list[Any], int]:
    field, index = site.path[-1]
    assert index is not None
    return list(getattr(tree.node_at(context.module, site.path[:-1]), field)), index


def _stands_nearby(context: Context, site: Site, new: Sequence[Any]) -> bool:
    """Whether ``new`` stands among the siblings of a statement, or of a guard that was put around it since."""
    holders = [site.path[: -2 * (depth + 1)] for depth, _ in enumerate(_sole_holders(context, site))]
    bodies_around = [_siblings(context, Site(path, None))[0] for path in [site.path, *holders]]
    return any(bodies.has_run(body, new) for body in bodies_around)


def _is_in_run(context: Context, site: Site, new: Sequence[Any]) -> bool:
    """Whether a statement is part of what an earlier application of this edit inserted."""
    if not site.path or site.path[-1][1] is None:
        return False
    siblings, index = _siblings(context, site)
    size = len(new)
    return any(tree.same_statements(siblings[i : i + size], new) for i in range(max(0, index - size + 1), index + 1))


def branch(context: Context) -> None:
    test = context.expression(context.edit.argument["if"])
    body = context.statements(context.edit.argument["do"])

    def is_ours(node: Any) -> bool:
        return _tests(node, test) and tree.same_statements(node.body.body, body)

    def chain(node: cst.If) -> cst.If:
        rest = node.with_changes(leading_lines=[], whitespace_before_test=cst.SimpleWhitespace(" "))
        return cst.If(test, cst.IndentedBlock(body), orelse=rest, leading_lines=node.leading_lines)

    for match in context.matches(skip=lambda site: is_ours(site.node)):
        if not isinstance(match.site.node, cst.If):
            raise context.fail("the anchor is not an `if`")
        if not any(is_ours(node) for node in _earlier_branches(context, match.site)):
            context.replace(match.site.path, chain)


def _earlier_branches(context: Context, site: Site) -> Iterator[Any]:
    path = site.path
    while path and path[-1][0] == "orelse":
        path = path[:-1]
        yield tree.node_at(context.module, path)


def guard(context: Context) -> None:
    test = context.expression(context.edit.argument)

    def is_ours(node: Any) -> bool:
        return _tests(node, test) and node.orelse is None and len(node.body.body) == 1

    def wrap(node: Any) -> cst.BaseSuite | cst.If:
        if isinstance(node, cst.SimpleStatementSuite):
            return cst.IndentedBlock([cst.If(test, cst.IndentedBlock([cst.SimpleStatementLine(node.body)]))])
        inner = cst.IndentedBlock([node.with_changes(leading_lines=[])])
        return cst.If(test, inner, leading_lines=node.leading_lines)

    for match in context.matches(skip=lambda site: is_ours(site.node)):
        if match.site.is_elif:
            raise context.fail("the anchor is an `elif`, which cannot be guarded; use `condition`")
        if not any(is_ours(node) for node in _sole_holders(context, match.site)):
            context.replace(match.site.path, wrap)


def _sole_holders(context: Context, site: Site) -> Iterator[Any]:
    """The ``if`` statements around a statement that hold nothing else, the innermost first."""
    path = site.path[:-2]
    while path and isinstance(node := tree.node_at(context.module, path), cst.If) and len(node.body.body) == 1:
        yield node
        path = path[:-2]


def _tests(node: Any, test: cst.BaseExpression) -> bool:
    return isinstance(node, cst.If) and tree.normal(node.test) == tree.normal(test)

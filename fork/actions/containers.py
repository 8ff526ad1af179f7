# SPDX-License-Identifier: Apache-2.0
"""``append`` and ``entry``: items of a literal that is assigned to a name."""

from __future__ import annotations

import libcst as cst

from fork import cst as tree
from fork import literals, symbols
from fork.actions.context import Context, short
from fork.cst import Site


def append(context: Context) -> None:
    items = [context.expression(text) for text in context.edit.argument]
    for site in _assigned_values(context):
        literal = literals.extend_literal(site.node, items)
        if literal is None:
            raise context.fail(f"the value is not a list, tuple, set or frozenset literal but `{short(site.node)}`")
        if literal is not site.node:
            context.replace(site.path, lambda node: literal)


def entry(context: Context) -> None:
    key, value = (context.expression(context.edit.argument[part]) for part in ("key", "value"))
    for site in _assigned_values(context):
        if not isinstance(site.node, cst.Dict):
            raise context.fail(f"the value is not a dict literal but `{short(site.node)}`")
        if not _has_entry(context, site.node, key, value):
            context.replace(site.path, lambda node: literals.extend_dict(node, key, value))


def _has_entry(context: Context, node: cst.Dict, key: cst.BaseExpression, value: cst.BaseExpression) -> bool:
    for element in node.elements:
        if isinstance(element, cst.DictElement) and tree.normal(element.key) == tree.normal(key):
            if tree.normal(element.value) == tree.normal(value):
                return True
            raise context.fail(f"there is an entry {short(key)} already, with the value `{short(element.value)}`")
    return False


def _assigned_values(context: Context) -> list[Site]:
    """What is assigned to ``in``, or to the anchor inside it."""
    if isinstance(context.edit.at, dict):
        assignments = context.found("assigns")
    else:
        scope = context.one_scope()
        name = context.edit.symbol.rpartition(".")[2]
        assignments = [small for small in tree.small_statements(scope) if name in symbols.names_assigned_by(small)]
    values = [Site((*site.path, ("value", None)), getattr(site.node, "value", None)) for site in assignments]
    if not values or any(site.node is None for site in values):
        raise context.fail("this is not assigned a value")
    return values

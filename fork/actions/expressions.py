# SPDX-License-Identifier: Apache-2.0
"""``value``, ``condition`` and ``argument``: one expression for another, which may hold the old one as ``{old}``."""

from __future__ import annotations

import ast
from typing import Any

import libcst as cst

from fork import anchors, literals
from fork import cst as tree
from fork.actions.context import Context
from fork.cst import Site
from fork.errors import EditError

_OLD = "__fork_old__"
_ATOMS = (
    cst.Name,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.BaseNumber,
    cst.BaseString,
    cst.List,
    cst.Set,
    cst.Dict,
    cst.BaseComp,
)


def value(context: Context) -> None:
    for site in _sites(context, "assigns", "value"):
        new = _substituted(context, context.edit.argument, tree.node_at(context.module, site.path).value)
        if new is not None:
            context.replace(site.path, lambda node: _with_value(node, new))


def condition(context: Context) -> None:
    for site in _sites(context, "tests", "test"):
        new = _substituted(context, context.edit.argument, tree.node_at(context.module, site.path).test)
        if new is not None:
            context.replace(site.path, lambda node: node.with_changes(test=new))


def argument(context: Context) -> None:
    wanted = context.edit.argument
    for site in context.found("calls"):
        call = tree.node_at(context.module, site.path)
        index = _argument_index(call, wanted)
        if index is None and "position" in wanted:
            raise context.fail(f"the call has no positional argument {wanted['position']}")
        new = _substituted(context, wanted["value"], None if index is None else call.args[index].value)
        if new is None:
            continue
        if index is None:
            equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
            added = cst.Arg(new, keyword=cst.Name(wanted["name"]), equal=equal)
            context.replace(site.path, lambda node: literals.extend_call(node, added))
        else:
            context.replace((*site.path, ("args", index)), lambda node: node.with_changes(value=new))


def _sites(context: Context, key: str, field: str) -> list[Site]:
    """What the anchor finds; nothing if it finds none because an earlier application replaced what it sought."""
    try:
        return context.found(key)
    except EditError:
        at = context.edit.at
        if "{old}" in context.edit.argument or not isinstance(at, dict):
            raise
        new = tree.normal(context.expression(context.edit.argument))
        held = [getattr(site.node, field) for site in anchors.holders(context.scopes, at, key)]
        if not any(node is not None and tree.normal(node) == new for node in held):
            raise
        return []


def _substituted(context: Context, text: str, old: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """The new expression, with the old one for ``{old}``; None if ``old`` is what an earlier application made."""
    template = context.expression(text.replace("{old}", _OLD))
    if "{old}" not in text:
        return None if old is not None and tree.normal(old) == tree.normal(template) else template
    if old is None:
        raise context.fail("{old} stands for the present value, but there is none")
    if isinstance(template, cst.Name):
        raise context.fail("{old} alone changes nothing")
    parts = [old, *(site.node for site in tree.own_nodes(Site((), old)))]
    if any(_fits(part, template) for part in parts if isinstance(part, cst.BaseExpression)):
        return None
    operand = old
    if not old.lpar and not isinstance(old, _ATOMS):
        operand = old.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    result: Any = template
    for site in tree.own_nodes(Site((), template)):
        if isinstance(site.node, cst.Name) and site.node.value == _OLD:
            result = tree.replace(result, site.path, lambda node: operand.deep_clone())
    new: cst.BaseExpression = result
    return new


def _fits(node: cst.BaseExpression, template: cst.BaseExpression) -> bool:
    """Whether ``node`` is ``template`` with some expression in each place of the old one."""

    def same(left: Any, right: Any) -> bool:
        if isinstance(right, ast.Name) and right.id == _OLD:
            return True
        if type(left) is not type(right):
            return False
        if isinstance(left, ast.AST):
            names = [name for name in left._fields if name != "ctx"]
            return all(same(getattr(left, name, None), getattr(right, name, None)) for name in names)
        if isinstance(left, list):
            return len(left) == len(right) and all(map(same, left, right))
        return bool(left == right)

    try:
        return same(*(ast.parse(tree.normal(expression), mode="eval") for expression in (node, template)))
    except SyntaxError:
        return False


def _with_value(node: Any, new: cst.BaseExpression) -> Any:
    if isinstance(node, cst.AnnAssign) and node.value is None:
        return node.with_changes(value=new, equal=cst.AssignEqual())
    return node.with_changes(value=new)


def _argument_index(call: cst.Call, wanted: dict[str, Any]) -> int | None:
    if "name" in wanted:
        return next((i for i, arg in enumerate(call.args) if arg.keyword and arg.keyword.value == wanted["name"]), None)
    positional = [i for i, arg in enumerate(call.args) if arg.keyword is None and not arg.star]
    return positional[wanted["position"]] if 0 <= wanted["position"] < len(positional) else None

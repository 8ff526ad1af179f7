# SPDX-License-Identifier: Apache-2.0
"""Adds an item to a list, tuple, set or dict literal, or to a call, in the layout that the others have."""

from __future__ import annotations

from typing import Any

import libcst as cst

from fork import cst as tree

_SPACE = cst.SimpleWhitespace(" ")
_NONE = cst.SimpleWhitespace("")
_WRAPPERS = ("list", "tuple", "set", "frozenset")


def extend_literal(node: cst.BaseExpression, values: list[cst.BaseExpression]) -> cst.BaseExpression | None:
    """The literal with those of ``values`` that it lacks added at its end; None if the expression is no such
    literal."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in _WRAPPERS:
        if not node.args:
            return node.with_changes(args=[cst.Arg(cst.List([cst.Element(value) for value in values]))])
        inner = extend_literal(node.args[0].value, values) if len(node.args) == 1 else None
        if inner is None or inner is node.args[0].value:
            return inner and node
        return node.with_changes(args=[node.args[0].with_changes(value=inner)])
    if not isinstance(node, (cst.List, cst.Tuple, cst.Set)):
        return None
    present = {tree.normal(element.value) for element in node.elements}
    for value in values:
        if tree.normal(value) not in present:
            node = _append(node, cst.Element(value))
    return node


def extend_dict(node: cst.Dict, key: cst.BaseExpression, value: cst.BaseExpression) -> cst.Dict:
    extended: cst.Dict = _append(node, cst.DictElement(key, value))
    return extended


def extend_call(node: cst.Call, argument: cst.Arg) -> cst.Call:
    if not node.args:
        return node.with_changes(args=[argument])
    *others, last = node.args
    if isinstance(last.comma, cst.Comma):  # what stands before the closing parenthesis belongs to the last comma
        separator = _separator(node.args, node.whitespace_before_args, last.comma.whitespace_after)
        argument = argument.with_changes(
            comma=last.comma.with_changes(whitespace_after=_without_comment(last.comma.whitespace_after))
        )
    else:
        separator = _separator(node.args, node.whitespace_before_args, last.whitespace_after_arg)
        argument = argument.with_changes(whitespace_after_arg=_without_comment(last.whitespace_after_arg))
    last = last.with_changes(comma=cst.Comma(whitespace_after=separator), whitespace_after_arg=_NONE)
    return node.with_changes(args=[*others, last, argument])


def _append(node: Any, item: Any) -> Any:
    opening, closing = _brackets(node)
    if not node.elements:
        return node.with_changes(elements=[item])
    *others, last = node.elements
    if isinstance(last.comma, cst.Comma):
        item = item.with_changes(comma=cst.Comma())
    last = last.with_changes(comma=cst.Comma(whitespace_after=_separator(node.elements, opening, closing)))
    return _with_closing(node.with_changes(elements=[*others, last, item]), _without_comment(closing))


def _brackets(node: Any) -> tuple[Any, Any]:
    """The white space after the opening and before the closing bracket."""
    if isinstance(node, cst.List):
        return node.lbracket.whitespace_after, node.rbracket.whitespace_before
    if isinstance(node, (cst.Set, cst.Dict)):
        return node.lbrace.whitespace_after, node.rbrace.whitespace_before
    if node.lpar:
        return node.lpar[0].whitespace_after, node.rpar[0].whitespace_before
    return _NONE, _NONE


def _with_closing(node: Any, closing: Any) -> Any:
    if isinstance(node, cst.List):
        return node.with_changes(rbracket=node.rbracket.with_changes(whitespace_before=closing))
    if isinstance(node, (cst.Set, cst.Dict)):
        return node.with_changes(rbrace=node.rbrace.with_changes(whitespace_before=closing))
    if node.rpar:
        return node.with_changes(rpar=[node.rpar[0].with_changes(whitespace_before=closing), *node.rpar[1:]])
    return node


def _separator(items: Any, opening: Any, closing: Any) -> Any:
    """What goes between the item that was the last and the new one: as between the others, with the comments
    that stood after the last."""
    model = items[-2].comma.whitespace_after if len(items) > 1 else opening
    if not isinstance(model, cst.ParenthesizedWhitespace):
        return _SPACE
    if isinstance(closing, cst.ParenthesizedWhitespace):
        return model.with_changes(first_line=closing.first_line, empty_lines=closing.empty_lines)
    return _without_comment(model)


def _without_comment(space: Any) -> Any:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    return space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])

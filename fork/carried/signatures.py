# SPDX-License-Identifier: Apache-2.0
"""What a Python file defines, read from its text: nothing is imported, so nothing need be installed or run.

A signature is the parameters with their defaults, as source: ``(self, batch, on_publish=None)``. Annotations are left
out; they do not decide whether a call fits. What is not called is told by one word: ``class``, ``value`` (of a module),
``attribute`` (of a class or an instance, properties among them), ``import``.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody", "handlers")
_LONG = 100
_PROPERTIES = ("property", "cached_property")
_STRUCTS = ("NamedTuple", "Struct", "BaseModel")


def read(module: ast.Module) -> dict[str, str]:
    """The signature of each name that a module binds at its top level, and of each member of its classes, by dotted
    name. One that is bound more than once (``if`` and ``else``) has all of its signatures, joined by ``or``."""
    found: dict[str, list[str]] = {}

    def put(name: str, signature: str) -> None:
        seen = found.setdefault(name, [])
        if signature not in seen:
            seen.append(signature)

    for node in flat(module.body):
        if isinstance(node, ast.ClassDef):
            put(node.name, "class")
            for name, signature in _members(node):
                put(f"{node.name}.{name}", signature)
        elif isinstance(node, Function):
            if not _has_decorator(node, ("overload",)):
                put(node.name, signature_of(node))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                put(alias.asname or alias.name.partition(".")[0], "import")
        else:
            for name in assigned(node):
                put(name, "value")
    return {name: " or ".join(signatures) for name, signatures in found.items()}


def flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of the ``if``, ``try`` and ``with`` in it, but not of definitions."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            for block in _BLOCKS:
                for child in getattr(node, block, ()):
                    yield from flat(child.body if isinstance(child, ast.ExceptHandler) else [child])


def deep(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement of a body, those of loops and of definitions in it too. Far quicker than to walk all nodes."""
    for node in body:
        yield node
        for block in (*_BLOCKS, "cases"):
            for child in getattr(node, block, ()):
                yield from deep([child] if isinstance(child, ast.stmt) else child.body)


def assigned(node: ast.stmt) -> Iterator[str]:
    """The plain names that a statement assigns or annotates."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        for item in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            if isinstance(item, ast.Name):
                yield item.id


def self_assignments(function: Function) -> Iterator[tuple[str, ast.Assign | ast.AnnAssign]]:
    """(attribute, statement) of each assignment to an attribute of the first parameter."""
    parameters = [*function.args.posonlyargs, *function.args.args]
    if not parameters or _has_decorator(function, ("staticmethod", "classmethod")):
        return
    for node in deep(function.body):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for item in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                    if (
                        isinstance(item, ast.Attribute)
                        and isinstance(item.value, ast.Name)
                        and item.value.id == parameters[0].arg
                    ):
                        yield item.attr, node


def signature_of(function: Function) -> str:
    if _has_decorator(function, _PROPERTIES):
        return "attribute"
    arguments = function.args
    bare = ast.arguments(
        posonlyargs=[ast.arg(argument.arg) for argument in arguments.posonlyargs],
        args=[ast.arg(argument.arg) for argument in arguments.args],
        vararg=arguments.vararg and ast.arg(arguments.vararg.arg),
        kwonlyargs=[ast.arg(argument.arg) for argument in arguments.kwonlyargs],
        kw_defaults=arguments.kw_defaults,
        kwarg=arguments.kwarg and ast.arg(arguments.kwarg.arg),
        defaults=arguments.defaults,
    )
    kind = next((f"{word} " for word in ("staticmethod", "classmethod") if _has_decorator(function, (word,))), "")
    return f"{kind}{'async ' if isinstance(function, ast.AsyncFunctionDef) else ''}({ast.unparse(bare)})"


def contrasted(before: str, after: str) -> tuple[str, str]:
    """Two signatures as a reader can tell them apart: of long ones the parameters that differ, ``...`` for others."""
    if "(" not in before or "(" not in after or max(len(before), len(after)) <= _LONG:
        return before, after
    old, new = (text.partition("(")[2].removesuffix(")").split(", ") for text in (before, after))
    same = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    return _elided(old, {block.a + i for block in same for i in range(block.size)}), _elided(
        new, {block.b + i for block in same for i in range(block.size)}
    )


def _elided(parts: Sequence[str], left_out: set[int]) -> str:
    told: list[str] = []
    for index, part in enumerate(parts):
        if index not in left_out:
            told.append(part)
        elif told[-1:] != ["..."]:
            told.append("...")
    return f"({', '.join(told)})"


def is_struct(node: ast.ClassDef) -> bool:
    """Whether a class gets its constructor from its annotated fields."""
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    return _has_decorator(node, ("dataclass", "struct")) or not bases.isdisjoint(_STRUCTS)


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    fields = []
    for inner in flat(node.body):
        if isinstance(inner, Function):
            if not _has_decorator(inner, ("overload", "setter")):
                yield inner.name, signature_of(inner)
            for name, _ in self_assignments(inner):
                yield name, "attribute"
        elif isinstance(inner, ast.ClassDef):
            yield inner.name, "class"
        else:
            yield from ((name, "attribute") for name in assigned(inner))
            if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                fields.append(inner)
    if is_struct(node) and not any(isinstance(inner, Function) and inner.name == "__init__" for inner in node.body):
        yield "__init__", _constructor(node, fields)


def _constructor(node: ast.ClassDef, fields: list[ast.AnnAssign]) -> str:
    parameters = ["self"]
    keyword_only = any(
        keyword.arg == "kw_only" and ast.unparse(keyword.value) == "True"
        for decorator in [*node.decorator_list, *node.keywords]
        for keyword in (decorator.keywords if isinstance(decorator, ast.Call) else [decorator])
        if isinstance(keyword, ast.keyword)
    )
    if keyword_only and fields:
        parameters.append("*")
    for field in fields:
        assert isinstance(field.target, ast.Name)
        default = "" if field.value is None else ast.unparse(field.value)
        if ast.unparse(field.annotation).startswith(("ClassVar", "typing.ClassVar")) or "init=False" in default:
            continue
        parameters.append(f"{field.target.id}={default}" if _is_default(field.value) else field.target.id)
    return f"({', '.join(parameters)})"


def _is_default(value: ast.expr | None) -> bool:
    """Whether the value of a field makes it optional: ``field()`` without a default does not."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        return any(keyword.arg in ("default", "default_factory") for keyword in value.keywords)
    return value is not None


def _has_decorator(node: Function | ast.ClassDef, names: Sequence[str]) -> bool:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(called).rpartition(".")[2] in names:
            return True
    return False

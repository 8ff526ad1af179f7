# SPDX-License-Identifier: Apache-2.0
"""New places of upstream that ours may have to join: code that names what we extend, or that lists the alternatives
that we add to. ``[[watch]]`` in upstream.toml says what to look for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fork.config import Watch


@dataclass(frozen=True)
class Mention:
    """One statement. ``text`` is its first line, shortened."""

    watch: str
    file: str
    line: int
    scope: str
    text: str


def new(watches: tuple[Watch, ...], old: Mapping[str, bytes], upstream: Mapping[str, bytes]) -> list[Mention]:
    """The mentions in ``upstream`` that ``old`` has not got: the same text in the same function does not count."""
    known = {(mention.watch, mention.file, mention.scope, mention.text) for mention in find(watches, old)}
    return [
        mention
        for mention in find(watches, upstream)
        if (mention.watch, mention.file, mention.scope, mention.text) not in known
    ]


def find(watches: tuple[Watch, ...], upstream: Mapping[str, bytes]) -> Iterator[Mention]:
    for file in sorted(upstream):
        if not file.endswith(".py"):
            continue
        relevant = [watch for watch in watches if file.startswith(watch.under)]
        if not relevant:
            continue
        content = upstream[file]
        relevant = [watch for watch in relevant if len(_in_text(watch, content)) >= watch.at_least]
        if relevant:
            yield from _in_file(relevant, file, ast.parse(content))


def _in_text(watch: Watch, content: bytes) -> set[bytes]:
    return set(re.findall(watch.pattern, content))


def _in_file(watches: list[Watch], file: str, module: ast.Module) -> Iterator[Mention]:
    for scope, node in _statements(module, ""):
        words = _words(node)
        for watch in watches:
            if len(words & set(watch.words)) >= watch.at_least:
                text = " ".join(ast.unparse(_head(node)).split())
                yield Mention(watch.name, file, node.lineno, scope, text[:117] + "..." if len(text) > 120 else text)


def _statements(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.stmt]]:
    """Every statement with the dotted name of the function or class around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield scope, child
        inner = scope
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{scope}.{child.name}".lstrip(".")
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _statements(child, inner)


def _words(statement: ast.stmt) -> set[str]:
    """The strings, names and attributes in a statement itself, not in the statements that it holds; docstrings and
    definitions' names aside."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return set()
    found: set[str] = set()
    pending = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        pending += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
        ]
    return found


def _head(statement: ast.stmt) -> ast.AST:
    """A statement without the block that it holds."""
    for name in ("test", "iter", "subject"):
        if hasattr(statement, name) and hasattr(statement, "body"):
            head: ast.AST = getattr(statement, name)
            return head
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return ast.Name(statement.name)
    return statement

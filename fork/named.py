# SPDX-License-Identifier: Apache-2.0
"""Is the test there that a patch names as its ``needs``? The test files are read, not imported: some import a GPU's
packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from fork.patches import Patch

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def problems(root: Path, patches: Sequence[Patch]) -> Iterator[str]:
    """A line for each patch whose test is not in the checkout at ``root``."""
    parsed: dict[Path, ast.Module] = {}
    for patch in patches:
        if problem := _problem(root, patch.needs, parsed):
            yield f"{patch.name}: needs {patch.needs}, but {problem}"


def _problem(root: Path, needs: str, parsed: dict[Path, ast.Module]) -> str:
    """What is wrong with ``path::test``, ``path::Class::test`` or one of these with ``[id]``; empty if nothing is."""
    place, bracket, parameters = needs.partition("[")
    file, *names = place.split("::")
    if not names or not all(names) or (bracket and not parameters.endswith("]")):
        return "that is not path::test, path::Class::test or path::test[id]"
    path = root / file
    if not path.is_file():
        return f"there is no file {file}"
    try:
        if path not in parsed:
            parsed[path] = ast.parse(path.read_bytes(), filename=file)
    except SyntaxError as error:
        return f"line {error.lineno} of {file} is not Python: {error.msg}"
    *classes, name = names
    scopes: list[ast.Module | ast.ClassDef] = [parsed[path]]
    for owner in classes:
        found = _find(scopes[-1], owner)
        if not isinstance(found, ast.ClassDef):
            return f"{file} has no class {owner}"
        scopes.append(found)
    test = _method(scopes[-1], name, parsed[path])
    if not isinstance(test, _Function) or not name.startswith("test"):
        return f"{file} has no test {'::'.join(names)}"
    if bracket and not _has_id(test, parameters[:-1], scopes):
        return f"{name} has no parameters [{parameters}"
    return ""


def _find(scope: ast.AST, name: str) -> ast.AST | None:
    """The function or class of that name, also inside an ``if`` or ``try`` of the scope."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _Function | ast.ClassDef):
            if node.name == name:
                return node
        elif isinstance(node, ast.stmt | ast.excepthandler) and (found := _find(node, name)):
            return found
    return None


def _method(scope: ast.AST, name: str, module: ast.Module, seen: tuple[ast.AST, ...] = ()) -> ast.AST | None:
    """As ``_find``, for a class in its bases of the same file too."""
    if (found := _find(scope, name)) or not isinstance(scope, ast.ClassDef):
        return found
    for base in scope.bases:
        parent = _find(module, base.id) if isinstance(base, ast.Name) else None
        if parent is not None and parent not in seen and (found := _method(parent, name, module, (*seen, scope))):
            return found
    return None


def _has_id(test: _Function, wanted: str, scopes: Sequence[ast.Module | ast.ClassDef]) -> bool:
    """False if the test takes no parameters at all, or none of the ids that its decorators spell out is in ``wanted``.
    Ids that only a run can tell are taken as given."""
    marks = [mark for node in (test, *scopes[1:]) if isinstance(node, _Function | ast.ClassDef)
             for mark in node.decorator_list if _is_parametrize(mark)]  # fmt: skip
    arguments = [a.arg for a in (*test.args.posonlyargs, *test.args.args, *test.args.kwonlyargs) if a.arg != "self"]
    if not marks and not arguments:
        return False
    known = [ids for mark in marks if isinstance(mark, ast.Call) and (ids := _ids(mark))]
    return all(any(each in wanted for each in ids) for ids in known)


def _is_parametrize(mark: ast.expr) -> bool:
    return isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr == "parametrize"


def _ids(mark: ast.Call) -> list[str]:
    """The ids of a decorator whose values, or ``ids``, are plain literals; none if they are not."""
    keywords = {keyword.arg: keyword.value for keyword in mark.keywords}
    values = keywords.get("ids") or keywords.get("argvalues") or (mark.args[1] if len(mark.args) > 1 else None)
    if not isinstance(values, ast.List | ast.Tuple):
        return []
    ids = []
    for value in values.elts:
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        for part in parts:
            if not isinstance(part, ast.Constant) or not isinstance(part.value, str | int | float):
                return []
            if isinstance(part.value, str) and not (part.value.isascii() and part.value.isprintable()):
                return []  # pytest escapes it
        ids.append("-".join(str(part.value) for part in parts if isinstance(part, ast.Constant)))
    return ids

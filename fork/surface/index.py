# SPDX-License-Identifier: Apache-2.0
"""A release as modules and symbols, read from its text: where a name is defined, what a class inherits, what type an
attribute is annotated with. A module is parsed when it is first asked for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fork.carried import signatures
from fork.carried.signatures import Function

_MAX_HOPS = 12


@dataclass(frozen=True)
class Definition:
    """Where a symbol is defined. ``symbol`` is dotted within ``module``."""

    module: str
    symbol: str
    signature: str

    @property
    def is_class(self) -> bool:
        return "class" in self.signature.split(" or ")


@dataclass
class Module:
    """One file. ``imports`` maps each bound name to the module, and to the name in it ("" for the module itself)."""

    name: str
    file: str
    tree: ast.Module
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    annotations: dict[str, dict[str, list[ast.expr]]] = field(default_factory=dict)

    @cached_property
    def signatures(self) -> dict[str, str]:
        return signatures.read(self.tree)


class Index:
    """The package of a wheel. ``files`` maps paths to contents, our added files among them or not."""

    def __init__(self, files: Mapping[str, bytes], package: str):
        self.files = files
        self.package = package
        self._modules: dict[str, Module | None] = {}

    # ---- modules

    def file_of(self, module: str) -> str | None:
        base = module.replace(".", "/")
        return next((file for file in (f"{base}.py", f"{base}/__init__.py") if file in self.files), None)

    def module(self, name: str) -> Module | None:
        if name not in self._modules:
            file = self.file_of(name)
            self._modules[name] = None if file is None else read_module(name, file, self.files[file])
        return self._modules[name]

    def is_ours_to_know(self, module: str) -> bool:
        return module.split(".", maxsplit=1)[0] == self.package

    # ---- names

    def resolve(self, module: str, symbol: str) -> Definition | None:
        """The definition of a dotted symbol, through re-exports and base classes; None if there is none here."""
        head, _, rest = symbol.partition(".")
        for _ in range(_MAX_HOPS):
            found = self.module(module)
            if found is None:
                return None
            if not head:
                return Definition(module, "", "module")
            if self.file_of(f"{module}.{head}") and found.signatures.get(head, "import") == "import":
                module, (head, _, rest) = f"{module}.{head}", rest.partition(".")
                continue
            if head in found.imports and head not in found.classes:
                target, name = found.imports[head]
                if not self.is_ours_to_know(target):
                    return Definition(module, head, "import") if not rest else None
                module, (head, _, rest) = target, (f"{name}.{rest}" if name and rest else name or rest).partition(".")
                continue
            break
        else:
            return None
        if head not in found.signatures:
            dotted = f"{head}.{rest}" if rest else head
            return next((there for star in found.stars if (there := self.resolve(star, dotted))), None)
        if not rest:
            return Definition(module, head, found.signatures[head])
        if head in found.classes:
            return self.member(module, head, rest)
        return None

    def member(self, module: str, name: str, attribute: str) -> Definition | None:
        """The attribute of a class, its own or inherited."""
        for owner, node in self.lineage(module, name):
            found = owner.signatures.get(f"{node.name}.{attribute}")
            if found is not None:
                return Definition(owner.name, f"{node.name}.{attribute}", found)
        return None

    def lineage(self, module: str, name: str) -> Iterator[tuple[Module, ast.ClassDef]]:
        """The class and those of its ancestors that the package defines, nearest first."""
        pending, seen = [(module, name)], set()
        while pending:
            where = self.resolve(*pending.pop(0))
            if where is None or (where.module, where.symbol) in seen:
                continue
            seen.add((where.module, where.symbol))
            owner = self.module(where.module)
            node = owner.classes.get(where.symbol) if owner else None
            if owner is not None and node is not None:
                yield owner, node
                pending += [(owner.name, ast.unparse(base)) for base in node.bases]

    # ---- types

    def type_of_member(self, module: str, name: str, attribute: str) -> tuple[str, str] | None:
        """The class, as (module, name), that an attribute or the result of a method is annotated with, or made of."""
        for owner, node in self.lineage(module, name):
            if node.name not in owner.annotations:
                owner.annotations[node.name] = _annotations(node)
            for annotation in owner.annotations[node.name].get(attribute, ()):
                found = self.class_of_annotation(owner, annotation)
                if found is not None:
                    return found
        return None

    def type_of_result(self, function: Definition) -> tuple[str, str] | None:
        """Likewise for what a function of a module returns."""
        owner = self.module(function.module)
        for node in signatures.flat(owner.tree.body) if owner else ():
            if isinstance(node, Function) and node.name == function.symbol and owner is not None:
                return self.class_of_annotation(owner, node.returns)
        return None

    def class_of_annotation(self, module: Module, annotation: ast.expr | None) -> tuple[str, str] | None:
        """``X``, ``"X"``, ``Optional[X]`` and ``X | None`` as (module, name) of the class X of the package."""
        if annotation is None:
            return None
        for text in candidates_of_annotation(annotation):
            where = self.resolve(module.name, text)
            if where is not None and where.is_class:
                return where.module, where.symbol
        return None

    # ---- search

    def find(self, name: str) -> list[str]:
        """Modules whose text defines ``name`` at its top level, or as a method."""
        pattern = re.compile(
            rb"^[ \t]*(?:async )?(?:def|class) %s\b|^%s\s*[:=]" % ((re.escape(name.encode()),) * 2), re.M
        )
        return [
            module_name(file)
            for file in self.files
            if file.endswith(".py") and file.startswith(f"{self.package}/") and pattern.search(self.files[file])
        ]


class Layers(Mapping[str, bytes]):
    """Several mappings as one; the first that has a file gives it."""

    def __init__(self, *mappings: Mapping[str, bytes]):
        self._mappings = mappings
        self._files = dict.fromkeys(file for mapping in mappings for file in mapping)

    def __getitem__(self, file: str) -> bytes:
        for mapping in self._mappings:
            if file in mapping:
                return mapping[file]
        raise KeyError(file)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, file: object) -> bool:
        return file in self._files


def read_module(name: str, file: str, content: bytes, *, imports_everywhere: bool = False) -> Module:
    """``imports_everywhere``: also those inside functions, which bind no name that another module could ask for."""
    module = Module(name, file, ast.parse(content))
    package = name if file.endswith("/__init__.py") else name.rpartition(".")[0]
    for node in signatures.deep(module.tree.body) if imports_everywhere else signatures.flat(module.tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                module.imports.setdefault(bound, (alias.name if alias.asname else bound, ""))
        elif isinstance(node, ast.ImportFrom):
            source = absolute(package, node)
            for alias in node.names:
                module.imports.setdefault(alias.asname or alias.name, (source, alias.name))
    for statement in signatures.flat(module.tree.body):
        if isinstance(statement, ast.ImportFrom) and any(alias.name == "*" for alias in statement.names):
            module.stars.append(absolute(package, statement))
        if isinstance(statement, ast.ClassDef):
            module.classes.setdefault(statement.name, statement)
    return module


def absolute(package: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


def module_name(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def candidates_of_annotation(annotation: ast.expr) -> Iterator[str]:
    """The dotted names in an annotation that may be the class of the value."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            yield from candidates_of_annotation(ast.parse(annotation.value, mode="eval").body)
        except SyntaxError:
            return
    elif isinstance(annotation, (ast.Name, ast.Attribute)):
        yield ast.unparse(annotation)
    elif isinstance(annotation, ast.BinOp):
        yield from candidates_of_annotation(annotation.left)
        yield from candidates_of_annotation(annotation.right)
    elif isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).rpartition(".")[2] == "Optional":
        yield from candidates_of_annotation(annotation.slice)


def _annotations(node: ast.ClassDef) -> dict[str, list[ast.expr]]:
    """What tells the type of each attribute of a class, and of what each method returns."""
    told: dict[str, list[ast.expr]] = {}
    for inner in signatures.flat(node.body):
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            told.setdefault(inner.target.id, []).append(inner.annotation)
        elif isinstance(inner, Function):
            if inner.returns is not None:
                told.setdefault(inner.name, []).append(inner.returns)
            parameters = {argument.arg: argument.annotation for argument in [*inner.args.args, *inner.args.kwonlyargs]}
            for name, assignment in signatures.self_assignments(inner):
                value = assignment.value
                if isinstance(assignment, ast.AnnAssign):
                    told.setdefault(name, []).append(assignment.annotation)
                elif isinstance(value, ast.Name) and (annotation := parameters.get(value.id)):
                    told.setdefault(name, []).append(annotation)
                elif isinstance(value, ast.Call):
                    told.setdefault(name, []).append(value.func)
    return told

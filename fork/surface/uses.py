# SPDX-License-Identifier: Apache-2.0
"""What our added files use of upstream, by static analysis: names that they import, functions and classes that they
call, methods that they override, and attributes of objects whose class is known from an annotation."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from fork.carried import signatures
from fork.carried.signatures import Function
from fork.patches import Edit, Patch
from fork.surface.index import Index, Module, module_name, read_module

Class = tuple[str, str]
"""The module and the name of a class."""


@dataclass(frozen=True)
class Call:
    """The shape of a call. ``positional`` is None where a ``*`` hides the number, ``keywords`` where a ``**`` does."""

    positional: int | None
    keywords: tuple[str, ...] | None


@dataclass(frozen=True)
class Use:
    """One place of ours that relies on ``symbol`` of ``module`` ("" for the module itself), a member of a class among
    them. ``override`` holds the signature of our method where that replaces theirs."""

    module: str
    symbol: str
    file: str
    line: int
    call: Call | None = None
    override: str = ""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


def find(added: Mapping[str, bytes], index: Index) -> list[Use]:
    """Every import of the package in the added files, and every other use that ``index`` can resolve; it must hold the
    added files too."""
    ours = _modules(added)
    uses: set[Use] = set()
    for file, content in added.items():
        if file.endswith(".py"):
            module = read_module(module_name(file), file, content, imports_everywhere=True)
            uses.update(_Finder(module, index, ours).run())
    return _sorted(uses)


def find_in_patches(series: Iterable[Patch], added: Mapping[str, bytes], index: Index, version: str) -> list[Use]:
    """Likewise for what the patches insert. A snippet sees the names of the file that it goes to."""
    ours = _modules(added)
    uses: set[Use] = set()
    for patch in series:
        for edit in patch.edits:
            host = index.module(module_name(edit.file)) if edit.applies_to(version) else None
            if host is not None:
                for text in snippets(edit):
                    uses.update(_in_snippet(host, f"patches/{patch.path.name}", text, index, ours))
    return _sorted(uses)


def _in_snippet(host: Module, file: str, text: str, index: Index, ours: set[str]) -> list[Use]:
    try:
        snippet = read_module(host.name, file, textwrap.dedent(text).encode(), imports_everywhere=True)
    except SyntaxError:  # the edit itself will say so
        return []
    theirs = {name: (host.name, name) for name in host.signatures if name not in host.imports}
    snippet.imports = {**theirs, **host.imports, **snippet.imports}
    return [replace(use, line=0) for use in _Finder(snippet, index, ours).run()]


def _modules(added: Mapping[str, bytes]) -> set[str]:
    return {module_name(file) for file in added if file.endswith(".py")}


def snippets(edit: Edit) -> Iterator[str]:
    """The code that an edit brings."""
    values = edit.argument.values() if isinstance(edit.argument, dict) else edit.argument
    for value in [values] if isinstance(values, str) else values:
        if isinstance(value, str):
            yield value.replace("{old}", "None")


def _sorted(uses: Iterable[Use]) -> list[Use]:
    return sorted(uses, key=lambda use: (use.module, use.symbol, use.file, use.line, use.override, str(use.call)))


class _Finder:
    def __init__(self, module: Module, index: Index, ours: set[str]):
        self.module, self.index, self.ours = module, index, ours
        self.uses: list[Use] = []

    def run(self) -> list[Use]:
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level and self._is_theirs(node.module):
                for alias in node.names:
                    if f"{node.module}.{alias.name}" not in self.ours:
                        self._use(node.module, alias.name, node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if self._is_theirs(alias.name):
                        self._use(alias.name, "", node)
        self._block(self.module.tree.body, {}, None)
        return self.uses

    def _is_theirs(self, module: str) -> bool:
        return self.index.is_ours_to_know(module) and module not in self.ours

    def _use(self, module: str, symbol: str, node: ast.AST, call: Call | None = None, override: str = "") -> None:
        self.uses.append(Use(module, symbol, self.module.file, getattr(node, "lineno", 0), call, override))

    def _use_member(
        self, holder: Class, name: str, node: ast.AST, call: Call | None = None, override: str = ""
    ) -> None:
        """Records the use of a member of a class, if it is upstream that defines it."""
        found = self.index.member(*holder, name)
        if found is not None and self._is_theirs(found.module):
            self._use(holder[0], f"{holder[1]}.{name}", node, call, override)

    # ---- scopes

    def _block(self, body: list[ast.stmt], types: dict[str, Class], owner: Class | None) -> None:
        for node in body:
            self._statement(node, types, owner)

    def _statement(self, node: ast.stmt, types: dict[str, Class], owner: Class | None) -> None:
        """``types`` has the classes of the variables in scope, ``owner`` is the class whose body this is in."""
        if isinstance(node, ast.ClassDef):
            self._overrides(node)
            self._block(node.body, dict(types), (self.module.name, node.name))
            return
        if isinstance(node, Function):
            inside = {**types, **self._parameters(node)}
            if owner is not None and node.args.args:
                inside[node.args.args[0].arg] = owner
            self._block(node.body, inside, owner)
            return
        for child in _own_nodes(node):
            if isinstance(child, ast.Call):
                self._call(child, types, owner)
            elif isinstance(child, ast.Attribute):
                self._attribute(child, types, owner)
        self._assign(node, types, owner)
        for inner in _inner_blocks(node):
            self._block(inner, types, owner)

    def _parameters(self, node: Function) -> dict[str, Class]:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        typed = {argument.arg: self._annotated(argument.annotation) for argument in arguments}
        return {name: found for name, found in typed.items() if found is not None}

    def _annotated(self, annotation: ast.expr | None) -> Class | None:
        return self.index.class_of_annotation(self.module, annotation)

    def _assign(self, node: ast.stmt, types: dict[str, Class], owner: Class | None) -> None:
        found: dict[str, Class | None] = {}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = self._annotated(node.annotation)
        elif isinstance(node, ast.Assign):
            for target, value in _pairs(node.targets[0], node.value):
                found[target] = self._type_of(value, types, owner) if value is not None else None
        for name, its in found.items():
            if its is None:
                types.pop(name, None)
            else:
                types[name] = its

    # ---- uses

    def _overrides(self, node: ast.ClassDef) -> None:
        bases = [found for base in node.bases if (found := self._annotated(base))]
        for inner in node.body:
            if isinstance(inner, Function) and inner.name != "__init__":
                for base in bases:
                    self._use_member(base, inner.name, inner, override=signatures.signature_of(inner))

    def _attribute(self, node: ast.Attribute, types: dict[str, Class], owner: Class | None) -> None:
        holder = self._type_of(node.value, types, owner)
        if holder is not None:
            self._use_member(holder, node.attr, node)
            return
        target = self._imported(node, types)
        if target is not None and self.index.resolve(*target) is not None:
            self._use(*target, node)

    def _call(self, node: ast.Call, types: dict[str, Class], owner: Class | None) -> None:
        positional = None if any(isinstance(a, ast.Starred) for a in node.args) else len(node.args)
        keywords = [keyword.arg for keyword in node.keywords]
        call = Call(positional, None if None in keywords else tuple(name for name in keywords if name))
        if isinstance(node.func, ast.Attribute):
            holder = self._holder(node.func, types, owner)
            if holder is not None:
                self._use_member(holder, node.func.attr, node, call)
                return
        target = self._imported(node.func, types)
        if target is None:
            return
        found = self.index.resolve(*target)
        if found is None:
            return
        if found.is_class:
            self._use_member((found.module, found.symbol), "__init__", node, call)
        elif self._is_theirs(found.module):
            self._use(*target, node, call)

    def _holder(self, node: ast.Attribute, types: dict[str, Class], owner: Class | None) -> Class | None:
        """The class that an attribute is looked up in; of ``super()`` the first base that has it."""
        if _is_super(node.value) and owner is not None:
            having = (base for base in self._bases(owner) if self.index.member(*base, node.attr))
            return next(having, None)
        return self._type_of(node.value, types, owner)

    def _bases(self, owner: Class) -> Iterator[Class]:
        cls = self.module.classes.get(owner[1])
        return (found for base in (cls.bases if cls else ()) if (found := self._annotated(base)))

    def _imported(self, node: ast.expr, types: dict[str, Class]) -> tuple[str, str] | None:
        """The module and symbol of an imported name, or of something that it holds."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in types or node.id not in self.module.imports:
            return None
        module, name = self.module.imports[node.id]
        names = [*filter(None, [name]), *reversed(parts)]
        while names and self.index.file_of(f"{module}.{names[0]}"):
            module = f"{module}.{names.pop(0)}"
        return (module, ".".join(names)) if self._is_theirs(module) else None

    def _type_of(self, node: ast.expr, types: dict[str, Class], owner: Class | None) -> Class | None:
        if isinstance(node, ast.Name):
            return types.get(node.id)
        if isinstance(node, ast.Attribute):
            holder = self._type_of(node.value, types, owner)
            return self.index.type_of_member(*holder, node.attr) if holder else None
        if not isinstance(node, ast.Call):
            return None
        if _is_super(node) and owner is not None:
            return next(self._bases(owner), None)
        if isinstance(node.func, ast.Attribute) and (holder := self._type_of(node.func.value, types, owner)):
            return self.index.type_of_member(*holder, node.func.attr)
        made_by = self.index.resolve(self.module.name, ast.unparse(node.func)) if _is_dotted(node.func) else None
        if made_by is None:
            return None
        return (made_by.module, made_by.symbol) if made_by.is_class else self.index.type_of_result(made_by)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that an assignment binds, with the expression of each where it is written out."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
        for index, item in enumerate(target.elts):
            if isinstance(item, ast.Name):
                yield item.id, values[index] if values else None


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_dotted(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement but for those of the statements in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield child
            yield from _own_nodes(child)


def _inner_blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(node, name, None):
            yield block
    for name in ("handlers", "cases"):
        for part in getattr(node, name, ()):
            yield part.body

# SPDX-License-Identifier: Apache-2.0
"""Applies one edit to one file. Each action finds out first whether it is already there; then it changes nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

from fork import anchors, literals, symbols
from fork import cst as tree
from fork.cst import Path, Site
from fork.errors import EditError
from fork.patches import Edit

_OLD = "__fork_old__"


def apply_edit(module: cst.Module, edit: Edit) -> cst.Module:
    """Raises EditError when the edit's place is missing or ambiguous, or when what it brings does not parse."""
    return _Editing(module, edit).run()


class _Editing:
    def __init__(self, module: cst.Module, edit: Edit):
        self.module = module
        self.edit = edit
        self.scopes = symbols.resolve(module, edit.symbol, edit.file)

    def run(self) -> cst.Module:
        actions: dict[str, Callable[[], None]] = {
            "append": self._append,
            "entry": self._entry,
            "member": self._member,
            "field": self._field,
            "method": self._method,
            "function": self._function,
            "import": self._import,
            "before": self._insert,
            "after": self._insert,
            "branch": self._branch,
            "guard": self._guard,
            "value": self._value,
            "condition": self._condition,
            "argument": self._argument,
        }
        actions[self.edit.action]()
        return self.module

    # ---- finding

    def _fail(self, problem: str, candidates: Sequence[str] = ()) -> EditError:
        at = self.edit.at
        anchor = anchors.describe(at) if at is not None else ""
        if self.edit.within:
            anchor += f" within {anchors.describe(self.edit.within)}"
        return EditError(self.edit.file, problem, self.edit.symbol, anchor, tuple(candidates))

    def _one_scope(self) -> Site:
        if len(self.scopes) > 1:
            raise self._fail(f"the symbol is defined {len(self.scopes)} times, {self._lines(self.scopes)}")
        return self.scopes[0]

    def _lines(self, sites: Sequence[Site]) -> str:
        return "lines " + ", ".join(map(str, tree.line_of(self.module, sites)))

    def _matches(self, skip: Callable[[Site], bool] = lambda site: False) -> list[anchors.Match]:
        """The anchored statements, those aside that this edit brought itself (``skip``), outermost and first in the text first."""
        assert isinstance(self.edit.at, dict)
        found = {}
        for scope in self.scopes:
            for match in anchors.find(scope, self.edit.at, self.edit.within):
                if not skip(match.site):
                    found[match.site.path] = match
        matches = list(found.values())
        if not matches:
            near = [name for scope in self.scopes for name in anchors.nearest(scope, self.edit.at)]
            raise self._fail("no statement is like this", list(dict.fromkeys(near))[:3])
        if len(matches) > 1 and not self.edit.every:
            sites = [match.site for match in matches]
            raise self._fail(
                f"{len(matches)} statements are like this, {self._lines(sites)}; narrow it with `in` or `within`, or say every = true"
            )
        return matches

    def _found(self, key: str) -> list[Site]:
        """The expressions that ``key`` of the anchor found, the last one first, so that a change leaves the other paths valid."""
        sites = [site for match in self._matches() for site in match.found[key]]
        if len(sites) > 1 and not self.edit.every:
            raise self._fail(
                f"the statement has {len(sites)} of these, {self._lines(sites)}; say every = true to edit all"
            )
        return sites[::-1]

    def _replace(self, path: Path, change: Callable[[Any], Any]) -> None:
        self.module = tree.replace(self.module, path, change)

    # ---- reading what the edit brings

    def _statements(self, text: str) -> list[Any]:
        try:
            snippet = tree.parse(textwrap.dedent(text).strip("\n") + "\n", self.module.config_for_parsing)
        except cst.ParserSyntaxError as error:
            raise self._fail(f"`{self.edit.action}` does not parse: {error.message}, line {error.raw_line}") from error
        if not snippet.body:
            raise self._fail(f"`{self.edit.action}` has no statement")
        first = snippet.body[0]
        header = [line for line in snippet.header if line.comment]
        return [first.with_changes(leading_lines=[*header, *first.leading_lines]), *snippet.body[1:]]

    def _one_statement(self, text: str, kinds: Any, what: str) -> Any:
        statements = self._statements(text)
        if len(statements) != 1 or not isinstance(statements[0], kinds):
            raise self._fail(f"`{self.edit.action}` must be {what}")
        return statements[0]

    def _expression(self, text: str) -> cst.BaseExpression:
        try:
            return cst.parse_expression(textwrap.dedent(text).strip(), self.module.config_for_parsing)
        except cst.ParserSyntaxError as error:
            raise self._fail(f"`{self.edit.action}` does not parse: {text.strip()!r}") from error

    def _substituted(self, text: str, old: cst.BaseExpression | None) -> cst.BaseExpression | None:
        """The new expression, with the old one for ``{old}``; None if ``old`` is what an earlier application made."""
        template = self._expression(text.replace("{old}", _OLD))
        if "{old}" not in text:
            return None if old is not None and tree.normal(old) == tree.normal(template) else template
        if old is None:
            raise self._fail("{old} stands for the present value, but there is none")
        if isinstance(template, cst.Name):
            raise self._fail("{old} alone changes nothing")
        nodes = [old, *(site.node for site in tree.own_nodes(Site((), old)))]
        if any(_fits(node, template) for node in nodes if isinstance(node, cst.BaseExpression)):
            return None
        operand = (
            old
            if old.lpar or isinstance(old, _ATOMS)
            else old.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        )
        for site in [
            s for s in tree.own_nodes(Site((), template)) if isinstance(s.node, cst.Name) and s.node.value == _OLD
        ]:
            template = tree.replace(template, site.path, lambda node: operand.deep_clone())  # type: ignore[arg-type, assignment]
        return template

    # ---- literals

    def _assigned_value(self) -> Site:
        """The one value that is assigned to `in`, or to the anchor inside it."""
        if isinstance(self.edit.at, dict):
            assigning = self._found("assigns")[0]
        else:
            scope = self._one_scope()
            name = self.edit.symbol.rpartition(".")[2]
            assigning = next((s for s in tree.small_statements(scope) if name in symbols.assigned_names(scope)), scope)
        value = getattr(assigning.node, "value", None)
        if not isinstance(value, cst.BaseExpression):
            raise self._fail("this is not assigned a value")
        return Site((*assigning.path, ("value", None)), value)

    def _append(self) -> None:
        site = self._assigned_value()
        literal = literals.extend_literal(site.node, [self._expression(text) for text in self.edit.argument])
        if literal is None:
            raise self._fail(f"the value is not a list, tuple, set or frozenset literal but `{_short(site.node)}`")
        self._replace(site.path, lambda node: literal)

    def _entry(self) -> None:
        site = self._assigned_value()
        if not isinstance(site.node, cst.Dict):
            raise self._fail(f"the value is not a dict literal but `{_short(site.node)}`")
        key, value = self._expression(self.edit.argument["key"]), self._expression(self.edit.argument["value"])
        for element in site.node.elements:
            if isinstance(element, cst.DictElement) and tree.normal(element.key) == tree.normal(key):
                if tree.normal(element.value) == tree.normal(value):
                    return
                raise self._fail(f"there is an entry {_short(key)} already, with the value `{_short(element.value)}`")
        self._replace(site.path, lambda node: literals.extend_dict(node, key, value))

    # ---- classes and modules

    def _class_body(self) -> tuple[Path, list[Any]]:
        scope = self._one_scope()
        if not isinstance(scope.node, cst.ClassDef) or not isinstance(scope.node.body, cst.IndentedBlock):
            raise self._fail(f"`{self.edit.action}` needs a class with a body of its own")
        return (*scope.path, ("body", None)), list(scope.node.body.body)

    def _is_defined(self, body: Sequence[Any], new: Any) -> bool:
        """Whether a body has this definition; raises if it has another one of the same name."""
        names = _names_of(new)
        for statement in body:
            if names & _names_of(statement):
                if tree.same_statements([statement], [new]):
                    return True
                raise self._fail(f"{', '.join(sorted(names))} is defined already, and otherwise")
        return False

    def _add_assignment(self, last: Callable[[Any], bool], what: str) -> None:
        path, body = self._class_body()
        new = self._one_statement(self.edit.argument, cst.SimpleStatementLine, what)
        if not _names_of(new):
            raise self._fail(f"`{self.edit.action}` must be {what}")
        if self._is_defined(body, new):
            return
        index = max((i + 1 for i, statement in enumerate(body) if last(statement)), default=_after_docstring(body))
        self._replace(path, lambda block: block.with_changes(body=[*body[:index], new, *body[index:]]))

    def _member(self) -> None:
        self._add_assignment(
            lambda statement: _is_assignment(statement, cst.Assign), "one assignment, e.g. `NAME = auto()`"
        )

    def _field(self) -> None:
        self._add_assignment(
            lambda statement: _is_assignment(statement, (cst.Assign, cst.AnnAssign)), "one field, e.g. `name: int = 0`"
        )

    def _method(self) -> None:
        path, body = self._class_body()
        new = self._one_statement(self.edit.argument, cst.FunctionDef, "one method")
        if not self._is_defined(body, new):
            new = _spaced(new, 1)
            self._replace(path, lambda block: block.with_changes(body=[*body, new]))

    def _function(self) -> None:
        body = list(self.module.body)
        new = self._one_statement(self.edit.argument, tree.DEFINITIONS, "one function or class")
        if self._is_defined(body, new):
            return
        index = len(body) - 1 if body and _is_main_guard(body[-1]) else len(body)
        self.module = self.module.with_changes(body=[*body[:index], _spaced(new, 2), *body[index:]])

    def _import(self) -> None:
        new = self._one_statement(self.edit.argument, cst.SimpleStatementLine, "one import")
        if len(new.body) != 1 or not isinstance(new.body[0], (cst.Import, cst.ImportFrom)):
            raise self._fail("`import` must be one import")
        body = list(self.module.body)
        present = {item for statement in body for item in _import_items(statement)}
        if set(_import_items(new)) <= present:
            return
        first_definition = next(
            (i for i, statement in enumerate(body) if isinstance(statement, tree.DEFINITIONS)), len(body)
        )
        index = max((i + 1 for i in range(first_definition) if _import_items(body[i])), default=_after_docstring(body))
        if not index or not _import_items(body[index - 1]):  # the file's first import
            new = _spaced(new, min(index, 1))
        self.module = self.module.with_changes(body=[*body[:index], new, *body[index:]])

    # ---- statements

    def _insert(self) -> None:
        new = self._statements(self.edit.argument)
        if isinstance(self.edit.at, str):
            self._insert_at_edge(new)
            return
        for match in self._matches(skip=lambda site: self._is_in_run(site, new))[::-1]:
            site = match.site
            if site.is_elif:
                raise self._fail(
                    "the anchor is an `elif`, which has no place beside it; use `branch`, or the first `if` of the chain"
                )
            if isinstance(site.node, cst.SimpleStatementSuite):
                line = cst.SimpleStatementLine(site.node.body)
                self._replace(
                    site.path,
                    lambda suite: cst.IndentedBlock([*new, line] if self.edit.action == "before" else [line, *new]),
                )
                continue
            parent, index = self._siblings(site)
            nearby = parent[:index] if self.edit.action == "before" else parent[index + 1 :]
            if _has_run(nearby, new):
                continue
            self._replace(site.path, lambda node: [*new, node] if self.edit.action == "before" else [node, *new])

    def _siblings(self, site: Site) -> tuple[list[Any], int]:
        field, index = site.path[-1]
        assert index is not None
        return list(getattr(tree.node_at(self.module, site.path[:-1]), field)), index

    def _is_in_run(self, site: Site, new: Sequence[Any]) -> bool:
        """Whether a statement is part of what an earlier application of this edit inserted."""
        if not site.path or site.path[-1][1] is None:
            return False
        siblings, index = self._siblings(site)
        size = len(new)
        return any(
            tree.same_statements(siblings[i : i + size], new) for i in range(max(0, index - size + 1), index + 1)
        )

    def _insert_at_edge(self, new: list[Any]) -> None:
        scope = self._one_scope()
        if isinstance(scope.node, cst.Module):
            path, body = scope.path, list(scope.node.body)
        elif isinstance(scope.node, tree.DEFINITIONS) and isinstance(scope.node.body, cst.IndentedBlock):
            path, body = (*scope.path, ("body", None)), list(scope.node.body.body)
        else:
            raise self._fail("only a module, function or class with a body of its own has a start and an end")
        if _has_run(body, new):
            return
        index = _after_docstring(body) if self.edit.at == "start" else len(body)
        self._replace(path, lambda block: block.with_changes(body=[*body[:index], *new, *body[index:]]))

    def _branch(self) -> None:
        test, body = self._expression(self.edit.argument["if"]), self._statements(self.edit.argument["do"])

        def is_ours(node: Any) -> bool:
            return (
                isinstance(node, cst.If)
                and tree.normal(node.test) == tree.normal(test)
                and tree.same_statements(node.body.body, body)
            )

        for match in self._matches(skip=lambda site: is_ours(site.node))[::-1]:
            site = match.site
            if not isinstance(site.node, cst.If):
                raise self._fail("the anchor is not an `if`")
            if site.is_elif and is_ours(tree.node_at(self.module, site.path[:-1])):
                continue

            def chain(node: cst.If) -> cst.If:
                rest = node.with_changes(leading_lines=[], whitespace_before_test=cst.SimpleWhitespace(" "))
                return cst.If(test, cst.IndentedBlock(body), orelse=rest, leading_lines=node.leading_lines)

            self._replace(site.path, chain)

    def _guard(self) -> None:
        test = self._expression(self.edit.argument)

        def is_ours(node: Any) -> bool:
            if not isinstance(node, cst.If) or node.orelse is not None or tree.normal(node.test) != tree.normal(test):
                return False
            return len(node.body.body) == 1

        for match in self._matches(skip=lambda site: is_ours(site.node))[::-1]:
            site = match.site
            if site.is_elif:
                raise self._fail("the anchor is an `elif`, which cannot be guarded; use `condition`")
            if len(site.path) > 1 and is_ours(tree.node_at(self.module, site.path[:-2])):
                continue
            if isinstance(site.node, cst.SimpleStatementSuite):
                inner = cst.If(test, cst.IndentedBlock([cst.SimpleStatementLine(site.node.body)]))
                self._replace(site.path, lambda suite: cst.IndentedBlock([inner]))
                continue

            def wrap(node: Any) -> cst.If:
                return cst.If(
                    test, cst.IndentedBlock([node.with_changes(leading_lines=[])]), leading_lines=node.leading_lines
                )

            self._replace(site.path, wrap)

    # ---- expressions

    def _value(self) -> None:
        for site in self._found("assigns"):
            new = self._substituted(self.edit.argument, site.node.value)
            if new is not None:
                self._replace(site.path, lambda node: _with_value(node, new))

    def _condition(self) -> None:
        for site in self._found("tests"):
            new = self._substituted(self.edit.argument, tree.node_at(self.module, site.path).test)
            if new is not None:
                self._replace(site.path, lambda node: node.with_changes(test=new))

    def _argument(self) -> None:
        wanted = self.edit.argument
        for site in self._found("calls"):
            call = tree.node_at(self.module, site.path)
            index = _argument_index(call, wanted)
            if index is None and "position" in wanted:
                raise self._fail(f"the call has no positional argument {wanted['position']}")
            new = self._substituted(wanted["value"], None if index is None else call.args[index].value)
            if new is None:
                continue
            if index is None:
                equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
                self._replace(
                    site.path,
                    lambda node: literals.extend_call(
                        node, cst.Arg(new, keyword=cst.Name(wanted["name"]), equal=equal)
                    ),
                )
            else:
                self._replace((*site.path, ("args", index)), lambda node: node.with_changes(value=new))


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


def _fits(node: cst.BaseExpression, template: cst.BaseExpression) -> bool:
    """Whether ``node`` is ``template`` with some expression in each place of the old one."""
    import ast

    def same(left: Any, right: Any) -> bool:
        if isinstance(right, ast.Name) and right.id == _OLD:
            return True
        if type(left) is not type(right):
            return False
        if isinstance(left, ast.AST):
            return all(
                same(getattr(left, name, None), getattr(right, name, None)) for name in left._fields if name != "ctx"
            )
        if isinstance(left, list):
            return len(left) == len(right) and all(map(same, left, right))
        return bool(left == right)

    def parsed(expression: cst.BaseExpression) -> ast.AST:
        return ast.parse(tree.normal(expression), mode="eval")

    try:
        return same(parsed(node), parsed(template))
    except SyntaxError:
        return False


def _with_value(node: Any, value: cst.BaseExpression) -> Any:
    if isinstance(node, cst.AnnAssign) and node.value is None:
        return node.with_changes(value=value, equal=cst.AssignEqual())
    return node.with_changes(value=value)


def _argument_index(call: cst.Call, wanted: dict[str, Any]) -> int | None:
    if "name" in wanted:
        return next((i for i, arg in enumerate(call.args) if arg.keyword and arg.keyword.value == wanted["name"]), None)
    position = wanted["position"]
    positional = [i for i, arg in enumerate(call.args) if arg.keyword is None and not arg.star]
    return positional[position] if 0 <= position < len(positional) else None


def _names_of(statement: Any) -> set[str]:
    if isinstance(statement, tree.DEFINITIONS):
        return {statement.name.value}
    return set(symbols.assigned_names(Site((), statement)))


def _is_assignment(statement: Any, kinds: Any) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and any(isinstance(small, kinds) for small in statement.body)


def _after_docstring(body: Sequence[Any]) -> int:
    index = 0
    if body and isinstance(body[0], cst.SimpleStatementLine) and isinstance(body[0].body[0], cst.Expr):
        if isinstance(body[0].body[0].value, (cst.SimpleString, cst.ConcatenatedString)):
            index = 1
    while index < len(body) and any(item[0] == "__future__" for item in _import_items(body[index])):
        index += 1
    return index


def _import_items(statement: Any) -> list[tuple[str, str, str]]:
    """(module, name, name bound) of each thing that a line imports."""
    items: list[tuple[str, str, str]] = []
    for small in getattr(statement, "body", ()) if isinstance(statement, cst.SimpleStatementLine) else ():
        if isinstance(small, cst.ImportFrom):
            module = "." * len(small.relative) + (tree.code(small.module) if small.module else "")
            if isinstance(small.names, cst.ImportStar):
                items.append((module, "*", "*"))
                continue
            items += [(module, tree.code(alias.name), _bound(alias)) for alias in small.names]
        elif isinstance(small, cst.Import):
            items += [("", tree.code(alias.name), _bound(alias)) for alias in small.names]
    return items


def _bound(alias: cst.ImportAlias) -> str:
    return tree.code(alias.asname.name if alias.asname else alias.name)


def _is_main_guard(statement: Any) -> bool:
    return isinstance(statement, cst.If) and tree.normal(statement.test).startswith("__name__ ==")


def _spaced(definition: Any, blank_lines: int) -> Any:
    comments = [line for line in definition.leading_lines if line.comment]
    return definition.with_changes(leading_lines=[*[cst.EmptyLine(indent=False)] * blank_lines, *comments])


def _has_run(body: Sequence[Any], run: Sequence[Any]) -> bool:
    return any(tree.same_statements(body[i : i + len(run)], run) for i in range(len(body) - len(run) + 1))


def _short(node: cst.CSTNode) -> str:
    text = " ".join(tree.code(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."

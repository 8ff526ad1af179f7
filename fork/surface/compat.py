# SPDX-License-Identifier: Apache-2.0
"""Does a release still have what ours uses of another one, with signatures that our calls fit?"""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fork.surface.index import Definition, Index, module_name
from fork.surface.uses import Call, Use

_KINDS = inspect.Parameter
_WORDS = ("async ", "classmethod ", "staticmethod ")


@dataclass
class Row:
    """What became of one symbol.

    ``state`` is present, moved, changed (our uses fit the new signature), breaks (some do not), gone, or absent (gone,
    and upstream.toml says that this does no harm). ``before`` and ``after`` are signatures, ``found`` says where it is
    now or what is nearest.
    """

    symbol: str
    state: str
    uses: list[Use]
    before: str = ""
    after: str = ""
    found: str = ""
    misfits: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.state in ("present", "changed", "absent")


def compare(uses: Iterable[Use], old: Index, new: Index, absent: Mapping[str, str]) -> list[Row]:
    """A row for each symbol. What belongs to a class that is itself gone has none: the class has."""
    grouped: dict[tuple[str, str], list[Use]] = {}
    for use in uses:
        grouped.setdefault((use.module, use.symbol), []).append(use)
    rows = []
    for (module, symbol), its in grouped.items():
        before, after = old.resolve(module, symbol), new.resolve(module, symbol)
        if before is None and after is None and "." in symbol:
            continue  # only a guess that there is such a thing
        if after is None:
            if "." in symbol and new.resolve(module, symbol.rpartition(".")[0]) is None and before is not None:
                continue
            row = _missing(module, symbol, before, its, new)
            if row.symbol in absent:
                row.state, row.found = "absent", absent[row.symbol]
            rows.append(row)
        else:
            rows.append(_present(before, after, its))
    return rows


def _missing(module: str, symbol: str, before: Definition | None, uses: list[Use], new: Index) -> Row:
    shown = _shown(before) if before else f"{module}.{symbol}".rstrip(".")
    row = Row(shown, "gone", uses, before.signature if before else "")
    head, _, rest = symbol.partition(".")
    if not symbol:
        row.found = ", ".join(difflib.get_close_matches(module, _modules(new), n=2, cutoff=0.75))
        return row
    if rest:
        near = difflib.get_close_matches(rest, _members(module, head, new), n=2, cutoff=0.6)
        row.found = ", ".join(f"{head}.{name}" for name in near)
        return row
    places = [place for place in new.find(head) if (there := new.resolve(place, head)) and there.module == place]
    if places:
        row.state, row.found = "moved", ", ".join(places[:3])
        row.after = next(iter(there.signature for place in places if (there := new.resolve(place, head))), "")
    else:
        names = found.signatures if (found := new.module(module)) else {}
        near = difflib.get_close_matches(head, [name for name in names if "." not in name], n=2, cutoff=0.6)
        row.found = ", ".join(f"{module}.{name}" for name in near)
    return row


def _present(before: Definition | None, after: Definition, uses: list[Use]) -> Row:
    row = Row(_shown(after), "present", uses, before.signature if before else "", after.signature)
    if before is None or before.signature == after.signature:
        return row
    row.state = "changed"
    bound = "." in after.symbol
    for use in uses:
        problem = ""
        if use.call is not None and not misfit(before.signature, use.call, bound=bound):
            problem = misfit(after.signature, use.call, bound=bound)
            problem = problem or reordered(before.signature, after.signature, use.call, bound=bound)
        elif use.override:
            problem = _override_misfit(after.signature, use.override)
        if problem:
            row.misfits.append(f"{use.where}: {problem}")
    callable_before, callable_after = "(" in before.signature, "(" in after.signature
    if callable_before != callable_after:
        row.misfits.append(f"was {_word(before.signature)}, is {_word(after.signature)}")
    if row.misfits:
        row.state = "breaks"
    return row


def _word(signature: str) -> str:
    return "a function" if "(" in signature else f"no function ({signature})"


def _shown(definition: Definition) -> str:
    return f"{definition.module}.{definition.symbol}".rstrip(".")


def _modules(index: Index) -> list[str]:
    return [module_name(file) for file in index.files if file.endswith(".py")]


def _members(module: str, name: str, index: Index) -> list[str]:
    return [
        member.partition(".")[2]
        for owner, node in index.lineage(module, name)
        for member in owner.signatures
        if member.startswith(f"{node.name}.")
    ]


# ---- does a call fit a signature?


def misfit(signature: str, call: Call, *, bound: bool) -> str:
    """Why ``call`` does not fit, or "". ``bound`` says that the first parameter is the object or the class."""
    problems = [_misfit(one, call, bound=bound) for one in signature.split(" or ") if "(" in one]
    return problems[0] if problems and all(problems) else ""


def reordered(before: str, after: str, call: Call, *, bound: bool) -> str:
    """Why the positional arguments of ``call`` mean something else in ``after``, or "". A new name alone is none."""
    if call.positional is None or " or " in before + after:
        return ""
    old, new = ([parameter.name for parameter in _parameters(text, bound=bound)] for text in (before, after))
    for was, now in list(zip(old, new, strict=False))[: call.positional]:
        if was != now and was in new:
            return f"parameter {was}, passed by position, has another place"
    return ""


def _misfit(signature: str, call: Call, *, bound: bool) -> str:
    parameters = _parameters(signature, bound=bound)
    if call.positional is None or call.keywords is None:
        accepted = {parameter.name for parameter in parameters}
        rest = any(parameter.kind is _KINDS.VAR_KEYWORD for parameter in parameters)
        unknown = [] if rest else [name for name in call.keywords or () if name not in accepted]
        return f"there is no parameter {', '.join(unknown)}" if unknown else ""
    try:
        inspect.Signature(parameters).bind(*[None] * call.positional, **dict.fromkeys(call.keywords))
    except TypeError as error:
        return str(error)
    return ""


def _override_misfit(theirs: str, ours: str) -> str:
    """Whether whoever calls the method as theirs declares it can still call ours."""
    own = _parameters(ours, bound=True)
    if any(parameter.kind is _KINDS.VAR_KEYWORD for parameter in own) or "(" not in theirs:
        return ""
    names = {parameter.name for parameter in own}
    missing = [
        parameter.name
        for parameter in _parameters(theirs.split(" or ", maxsplit=1)[0], bound=True)
        if parameter.kind not in (_KINDS.VAR_KEYWORD, _KINDS.VAR_POSITIONAL) and parameter.name not in names
    ]
    return f"our override does not take {', '.join(missing)}" if missing else ""


def _parameters(signature: str, *, bound: bool) -> list[inspect.Parameter]:
    text = signature
    for word in _WORDS:
        text = text.replace(word, "", 1) if text.startswith(word) else text
    if "(" not in text:
        return []
    function = ast.parse(f"def f{text}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    optional = len(positional) - len(arguments.defaults)
    parameters = [
        inspect.Parameter(
            argument.arg,
            _KINDS.POSITIONAL_ONLY if index < len(arguments.posonlyargs) else _KINDS.POSITIONAL_OR_KEYWORD,
            default=None if index >= optional else _KINDS.empty,
        )
        for index, argument in enumerate(positional)
    ]
    if bound and parameters and not signature.startswith("staticmethod"):
        parameters = parameters[1:]
    if arguments.vararg:
        parameters.append(inspect.Parameter(arguments.vararg.arg, _KINDS.VAR_POSITIONAL))
    parameters += [
        inspect.Parameter(argument.arg, _KINDS.KEYWORD_ONLY, default=_KINDS.empty if default is None else None)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        parameters.append(inspect.Parameter(arguments.kwarg.arg, _KINDS.VAR_KEYWORD))
    return parameters

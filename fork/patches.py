# SPDX-License-Identifier: Apache-2.0
"""Reads patch files.

``patches/README.md`` is the description of the format; everything it does not allow is refused here.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from fork.anchors import KEYS as ANCHOR_KEYS
from fork.errors import PatchFormatError

_PLACE_KEYS = ("file", "in", "at", "within", "versions", "every")
_TEXT, _TEXTS, _TABLE = "a string", "a string or a list of strings", "a table"
ACTIONS = {
    "append": _TEXTS,
    "entry": _TABLE,
    "member": _TEXT,
    "field": _TEXT,
    "method": _TEXT,
    "function": _TEXT,
    "import": _TEXT,
    "before": _TEXT,
    "after": _TEXT,
    "branch": _TABLE,
    "guard": _TEXT,
    "value": _TEXT,
    "condition": _TEXT,
    "argument": _TABLE,
}
_TABLE_KEYS = {"entry": {"key", "value"}, "branch": {"if", "do"}, "argument": {"name", "position", "value"}}
#: what `at` must hold: an anchor (any), an anchor with this key, nothing at all
_ANCHOR_OF = {
    "before": "",
    "after": "",
    "guard": "",
    "branch": "tests",
    "value": "assigns",
    "condition": "tests",
    "argument": "calls",
}
_NEEDS_SYMBOL = ("member", "field", "method")
_NAME = re.compile(r"(?P<number>\d{4})-[a-z0-9][a-z0-9-]*\.(toml|py)")


@dataclass(frozen=True)
class Edit:
    """One edit of one file: where it goes and what it does there."""

    file: str
    action: str
    argument: Any
    symbol: str = ""
    at: dict[str, str] | str | None = None
    within: dict[str, str] | None = None
    versions: SpecifierSet | None = None
    every: bool = False

    def applies_to(self, version: str) -> bool:
        return self.versions is None or self.versions.contains(version, prereleases=True)


@dataclass(frozen=True)
class Patch:
    """One patch file. ``edits`` is empty for a codemod, which has ``codemod`` (its source) instead."""

    name: str
    path: Path
    sha256: str
    why: str
    needs: str
    retire: str
    edits: tuple[Edit, ...] = ()
    codemod: str = ""


def load_series(folder: Path) -> list[Patch]:
    """Every patch of a folder in the order of its number.

    Raises PatchFormatError for a wrong name, content, or a number used twice.
    """
    patches: dict[str, Patch] = {}
    for path in sorted(folder.glob("*")):
        if path.name.startswith((".", "_")) or path.suffix == ".md":
            continue
        if not (name := _NAME.fullmatch(path.name)):
            raise PatchFormatError(f"{path}: a patch is named NNNN-some-words.toml or NNNN-some-words.py")
        number = name["number"]
        if number in patches:
            raise PatchFormatError(f"{path}: number {number} is taken by {patches[number].path.name}")
        patches[number] = load(path)
    return list(patches.values())


def load(path: Path) -> Patch:
    try:
        # Universal newlines: a checkout with CRLF is the same patch, with the same hash.
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PatchFormatError(f"{path}: cannot be read: {error}") from error
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    if path.suffix == ".py":
        return _load_codemod(path, text, sha256)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PatchFormatError(f"{path}: not valid TOML: {error}") from error
    if unknown := set(data) - {"why", "needs", "retire", "edit"}:
        raise PatchFormatError(f"{path}: unknown key {_listed(unknown)}; a patch has why, needs, retire and [[edit]]")
    for key in ("why", "needs", "retire"):
        if not isinstance(data.get(key), str) or not data[key].strip():
            raise PatchFormatError(
                f"{path}: `{key}` is missing or empty; each patch says why it exists, which test needs it, "
                "and what retires it"
            )
    if not isinstance(data.get("edit"), list) or not data["edit"]:
        raise PatchFormatError(f"{path}: there is no [[edit]]")
    edits = tuple(_load_edit(edit, f"{path}, edit {index}") for index, edit in enumerate(data["edit"], 1))
    return Patch(path.stem, path, sha256, data["why"], data["needs"], data["retire"], edits)


def _load_codemod(path: Path, text: str, sha256: str) -> Patch:
    try:
        module = ast.parse(text, filename=str(path))
    except SyntaxError as error:
        raise PatchFormatError(f"{path}: line {error.lineno}: {error.msg}") from error
    header: dict[str, str] = {}
    for node in module.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        ):
            header[node.targets[0].id] = str(node.value.value)
    for key in ("WHY", "NEEDS", "RETIRE"):
        if not header.get(key, "").strip():
            raise PatchFormatError(f'{path}: {key} = "..." is missing or empty')
    return Patch(path.stem, path, sha256, header["WHY"], header["NEEDS"], header["RETIRE"], codemod=text)


def _load_edit(data: Any, where: str) -> Edit:
    if not isinstance(data, dict):
        raise PatchFormatError(f"{where}: is not a table")
    if unknown := set(data) - set(_PLACE_KEYS) - set(ACTIONS):
        raise PatchFormatError(f"{where}: unknown key {_listed(unknown)}")
    actions = [key for key in data if key in ACTIONS]
    if len(actions) != 1:
        raise PatchFormatError(
            f"{where}: an edit does exactly one thing, this one has {_listed(actions) or 'no action'}"
        )
    action = actions[0]
    for key, kind, expected in (
        ("file", str, "a string"),
        ("in", str, "a string"),
        ("versions", str, "a string"),
        ("every", bool, "true or false"),
    ):
        if key in data and not isinstance(data[key], kind):
            raise PatchFormatError(f"{where}: `{key}` must be {expected}")
    if not data.get("file"):
        raise PatchFormatError(f"{where}: `file` is missing")
    if action in _NEEDS_SYMBOL and not data.get("in"):
        raise PatchFormatError(f"{where}: `{action}` needs `in`, the class that it goes to")
    at = data.get("at")
    if isinstance(at, str) and at not in ("start", "end"):
        raise PatchFormatError(f'{where}: `at` is an anchor table, "start" or "end", not "{at}"')
    if at is not None and not isinstance(at, str):
        _check_anchor(at, "at", where)
    if "within" in data:
        _check_anchor(data["within"], "within", where)
        if not isinstance(at, dict):
            raise PatchFormatError(f"{where}: `within` narrows an anchor, but `at` is not one")
    if isinstance(at, str) and action not in ("before", "after"):
        raise PatchFormatError(f'{where}: at = "{at}" goes with `before` or `after` only')
    if action in _ANCHOR_OF:
        if at is None:
            raise PatchFormatError(f"{where}: `{action}` needs `at`")
        if (key := _ANCHOR_OF[action]) and key not in at:
            raise PatchFormatError(f"{where}: `{action}` needs an anchor with `{key}`")
    elif at is not None and not (action in ("append", "entry") and "assigns" in at):
        raise PatchFormatError(f"{where}: `{action}` takes no such `at`")
    if action in ("append", "entry") and at is None and not data.get("in"):
        raise PatchFormatError(f"{where}: `{action}` needs `in` or at = {{assigns = ...}}")
    versions = None
    if "versions" in data:
        try:
            versions = SpecifierSet(data["versions"])
        except InvalidSpecifier as error:
            raise PatchFormatError(f"{where}: `versions` is not a PEP 440 specifier: {data['versions']!r}") from error
    argument = _check_argument(action, data[action], where)
    return Edit(
        data["file"], action, argument, data.get("in", ""), at, data.get("within"), versions, data.get("every", False)
    )


def _check_anchor(anchor: Any, key: str, where: str) -> None:
    if not isinstance(anchor, dict) or not anchor or not all(isinstance(value, str) for value in anchor.values()):
        raise PatchFormatError(f'{where}: `{key}` must be a table of strings, e.g. {{assigns = "self.x"}}')
    if unknown := set(anchor) - set(ANCHOR_KEYS):
        raise PatchFormatError(
            f"{where}: `{key}` has unknown key {_listed(unknown)}; known are {', '.join(ANCHOR_KEYS)}"
        )
    for name, value in anchor.items():
        if not value and name != "returns":
            raise PatchFormatError(f"{where}: `{name}` of `{key}` is empty")


def _check_argument(action: str, argument: Any, where: str) -> Any:
    kind = ACTIONS[action]
    if kind == _TABLE:
        allowed = _TABLE_KEYS[action]
        if not isinstance(argument, dict) or set(argument) - allowed:
            raise PatchFormatError(f"{where}: `{action}` must be a table with {_listed(allowed)}")
        required = allowed if action != "argument" else {"value"}
        if missing := required - set(argument):
            raise PatchFormatError(f"{where}: `{action}` lacks {_listed(missing)}")
        if action == "argument" and ("name" in argument) == ("position" in argument):
            raise PatchFormatError(f"{where}: `argument` has either `name` or `position`")
        for key, value in argument.items():
            if not isinstance(value, int if key == "position" else str) or isinstance(value, bool):
                raise PatchFormatError(
                    f"{where}: `{key}` of `{action}` must be {'a whole number' if key == 'position' else 'a string'}"
                )
        return argument
    texts = argument if isinstance(argument, list) and kind == _TEXTS else [argument]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise PatchFormatError(f"{where}: `{action}` must be {kind}, not empty")
    return tuple(texts) if kind == _TEXTS else argument


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))

# SPDX-License-Identifier: Apache-2.0
"""Applies the whole series, and lays the added files over the result, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import libcst as cst

from fork.actions import ACTIONS
from fork.actions.context import Context
from fork.carried.intact import MANIFEST, MARK
from fork.config import Config
from fork.errors import EditError, ForkError
from fork.patches import Patch

_MARK = f"{MARK}, see sglang/{MANIFEST}: "


@dataclass
class Outcome:
    """What one patch did: the files it changed, or why it could not. ``failed`` holds the error of each edit that found
    no place, by its number; the first of them is ``error``."""

    patch: Patch
    files: list[str] = field(default_factory=list)
    edits: int = 0
    skipped: int = 0
    error: ForkError | None = None
    failed: dict[int, EditError] = field(default_factory=dict)


@dataclass
class Tree:
    """The effect on upstream: the new text of each edited file, with the patches that edited it, and the
    content of each added one. ``originals`` are the files that edits went to, as upstream has them, parsed."""

    edited: dict[str, bytes] = field(default_factory=dict)
    edited_by: dict[str, list[str]] = field(default_factory=dict)
    added: dict[str, bytes] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    originals: dict[str, cst.Module] = field(default_factory=dict)

    @property
    def errors(self) -> list[ForkError]:
        return [outcome.error for outcome in self.outcomes if outcome.error]


class Sources:
    """Upstream's files and the trees that the edits have made of them so far.

    A file is parsed when an edit first needs it.
    """

    def __init__(self, upstream: Mapping[str, bytes]):
        self.upstream = upstream
        self.modules: dict[str, cst.Module] = {}
        self.originals: dict[str, cst.Module] = {}
        self.marked: set[str] = set()

    def module(self, file: str) -> cst.Module:
        if file not in self.modules:
            if file not in self.upstream:
                near = get_close_matches(file, list(self.upstream), n=3, cutoff=0.7)
                raise EditError(file, "upstream has no such file", candidates=tuple(near), kind="gone")
            original = self.upstream[file].decode("utf-8")
            text = _without_mark(original)
            if text != original:
                self.marked.add(file)
            self.modules[file] = self.originals[file] = cst.parse_module(text)
        return self.modules[file]


def apply_series(upstream: Mapping[str, bytes], patches: list[Patch], version: str) -> Tree:
    """Applies each patch in order.

    One that fails is recorded in its outcome and leaves no trace; the others are still tried.
    """
    try:
        return _apply_series(upstream, patches, version, check_each=False)
    except SyntaxError:  # rare, so only now is it worth its time to find out which patch breaks the file
        return _apply_series(upstream, patches, version, check_each=True)


def _apply_series(upstream: Mapping[str, bytes], patches: list[Patch], version: str, *, check_each: bool) -> Tree:
    sources = Sources(upstream)
    tree = Tree(originals=sources.originals)
    for patch in patches:
        outcome = Outcome(patch)
        tree.outcomes.append(outcome)
        before = dict(sources.modules)
        try:
            _apply_patch(patch, sources, version, outcome)
            for file in outcome.files if check_each else []:
                _check(file, sources.modules[file].code, patch)
        except ForkError as error:
            outcome.error = error
            outcome.files.clear()
            sources.modules = before
            continue
        for file in outcome.files:
            tree.edited_by.setdefault(file, []).append(patch.name)
    for file, names in tree.edited_by.items():
        text = _marked(sources.modules[file].code, names)
        compile(text, file, "exec", dont_inherit=True)
        tree.edited[file] = text.encode("utf-8")
    return tree


def _apply_patch(patch: Patch, sources: Sources, version: str, outcome: Outcome) -> None:
    def put(file: str, module: cst.Module) -> None:
        if module is not sources.modules[file]:
            sources.modules[file] = module
            if file not in outcome.files:
                outcome.files.append(file)

    if patch.codemod:
        namespace: dict[str, Any] = {}
        try:
            exec(compile(patch.codemod, str(patch.path), "exec"), namespace)
            for file in namespace["FILES"]:
                put(file, namespace["apply"](file, sources.module(file)))
                outcome.edits += 1
        except ForkError:
            raise
        except Exception as error:  # whatever a codemod raises is a failure of that patch, not of this program
            raise ForkError(f"{patch.name}: the codemod failed: {type(error).__name__}: {error}") from error
        return
    for index, edit in enumerate(patch.edits, 1):
        if not edit.applies_to(version):
            outcome.skipped += 1
            continue
        try:
            module = sources.module(edit.file)
            context = Context(module, edit, again=edit.file in sources.marked)
            ACTIONS[edit.action](context)
            put(edit.file, context.module)
        except EditError as error:
            error.patch, error.index = patch.name, index
            outcome.failed[index] = error  # and on to the next: a report is of use when it is whole
        else:
            outcome.edits += 1
    if outcome.failed:
        raise next(iter(outcome.failed.values()))


def _check(file: str, text: str, patch: Patch) -> None:
    try:
        compile(text, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise EditError(
            file, f"is no longer valid Python after the edit: line {error.lineno}: {error.msg}", patch=patch.name
        ) from error


def _marked(text: str, names: list[str]) -> str:
    """Apache-2.0, section 4(b): a modified file says that it was modified."""
    first, newline, rest = text.partition("\n")
    mark = f"{_MARK}{', '.join(names)}" + ("\r\n" if first.endswith("\r") else "\n")
    if first.startswith("#!"):
        return f"{first}{newline}{mark}{rest}"
    return mark + text


def _without_mark(text: str) -> str:
    lines = text.split("\n", 2)
    kept = [line for line in lines[:2] if not line.startswith(_MARK)]
    return "\n".join([*kept, *lines[2:]])


def added_paths(config: Config) -> dict[str, Path]:
    """Every file of the added trees by its path in the wheel."""
    added: dict[str, Path] = {}
    for tree in config.trees:
        if not tree.source.is_dir():
            raise ForkError(f"upstream.toml adds {tree.source.relative_to(config.root)}, which is not a folder")
        for path in sorted(tree.source.rglob("*")):
            if not path.is_file() or path.suffix == ".pyc" or "__pycache__" in path.parts:
                continue
            target = f"{tree.target}/{path.relative_to(tree.source).as_posix()}"
            if target in added:
                raise ForkError(
                    f"{path.relative_to(config.root)} and {added[target].relative_to(config.root)} both become {target}"
                )
            added[target] = path
    return added


def read_added(config: Config, upstream: Mapping[str, bytes]) -> dict[str, bytes]:
    """The content of each added file. One that upstream has, or that is not valid Python, is an error."""
    added: dict[str, bytes] = {}
    for target, path in added_paths(config).items():
        ours = path.relative_to(config.root)
        if target in upstream:
            raise ForkError(
                f"{ours} would overwrite {target} of upstream; edit that file with a patch, or rename yours"
            )
        added[target] = path.read_bytes()
        if path.suffix == ".py":
            added[target] = added[target].replace(b"\r\n", b"\n")  # a checkout with CRLF makes the same wheel
            try:
                compile(added[target], str(path), "exec", dont_inherit=True)
            except SyntaxError as error:
                raise ForkError(f"{ours}: line {error.lineno}: {error.msg}") from error
    return added

# SPDX-License-Identifier: Apache-2.0
"""Does each patch's ``needs`` test fail without it? A test that passes either way guards nothing.

The fork is laid out once as a development install. Then one patch at a time is taken away: the files that it edits are
made without it, and its test runs against them in a copy of this checkout whose ``patches/`` lacks it too.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fork import editable, manifest, wheel
from fork.apply import Tree, apply_series
from fork.carried import intact, signatures
from fork.config import Config
from fork.errors import ForkError
from fork.patches import Patch, load_series
from fork.rebase.move import LEFT_OUT
from fork.upstream import UpstreamWheel, fetch

_TIMEOUT_S = 1200
_TESTS_FAILED = 1
# What pytest says of a file that raises when it is imported: alone, and where one of its tests was named.
_NOT_IMPORTED = ("during collection", "found no collectors")


@dataclass
class Verdict:
    """``ok`` is None for a patch that is not for this release. ``said`` tells how its test failed, or what is wrong."""

    patch: str
    needs: str
    ok: bool | None
    said: str
    seconds: float = 0.0


class Workshop:
    """A copy of the checkout, and the fork laid out beside it."""

    def __init__(self, config: Config, folder: Path):
        self.root, self.site = folder / "checkout", folder / "build" / "editable"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(config.root, self.root, ignore=LEFT_OUT, symlinks=True)
        trees = tuple(replace(tree, source=self.root / tree.source.relative_to(config.root)) for tree in config.trees)
        self.config = replace(config, root=self.root, trees=trees)
        self.wheel: UpstreamWheel = fetch(config)
        self.series = load_series(self.config.patches)  # of the copy: the checkout may change meanwhile
        self.texts = {patch.name: patch.path.read_bytes() for patch in self.series}
        self.tree: Tree = wheel.make_tree(self.config, self.wheel)
        editable.lay_out(self.config, self.wheel, self.tree, self.site)

    def run(self, *arguments: str) -> tuple[int, str, set[str]]:
        """pytest's exit status, what it said, and the tests that failed, as ``file::name`` without parameters.
        ``arguments`` are tests and options."""
        report = self.root.parent / "report.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line"]
        environment = {**os.environ, "PYTHONPATH": str(self.site), "FORK_UPSTREAM": self.config.version}
        try:
            done = subprocess.run(
                [*command, f"--junitxml={report}", *arguments],
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return _TESTS_FAILED, f"did not end in {_TIMEOUT_S} s", set()
        return done.returncode, done.stdout + done.stderr, _failed(report)

    def without(self, patch: Patch) -> list[str]:
        """Takes a patch out of the layout; returns the patches that no longer apply without it."""
        files = self._files(patch)
        tree = apply_series(self.wheel, _reduced(self.series, patch, files), self.config.version)
        for file in files:
            self._put(file, tree.edited.get(file) or self.wheel[file])
        self._record(files, tree)
        patch.path.unlink()
        return [outcome.patch.name for outcome in tree.outcomes if outcome.error]

    def restore(self, patch: Patch) -> None:
        for file in self._files(patch):
            self._put(file, self.tree.edited.get(file) or self.wheel[file])
        for file, content in wheel.package_files(self.config, self.wheel, self.tree).items():
            if file.endswith(".json") and file not in self.tree.added:
                self._put(file, content)
        patch.path.write_bytes(self.texts[patch.name])

    def _files(self, patch: Patch) -> set[str]:
        return {edit.file for edit in patch.edits if edit.applies_to(self.config.version)}

    def _put(self, file: str, content: bytes) -> None:
        path = self.site / file
        path.write_bytes(content)
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)  # bytecode goes by whole seconds

    def _record(self, files: set[str], tree: Tree) -> None:
        """A server that starts compares itself with these: they must fit, or it fails for their sake."""
        told = json.loads((self.site / manifest.MANIFEST).read_text())
        path = self.site / self.config.package / intact.TABLE
        table = json.loads(path.read_text())
        for file in files:
            content = (self.site / file).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            if file in tree.edited:
                told["edited"][file] |= {"after": digest, "patches": tree.edited_by[file]}
            else:
                told["edited"].pop(file, None)
            if file in table["files"]:
                table["files"][file] = _entry(table["files"][file], content, digest)
        (self.site / manifest.MANIFEST).write_text(json.dumps(told))
        path.write_text(json.dumps(table))


def _entry(entry: dict[str, Any], content: bytes, digest: str) -> dict[str, Any]:
    there = signatures.read(ast.parse(content))
    return {"sha256": digest, "symbols": {name: there[name] for name in entry["symbols"] if name in there}}


def _reduced(series: Sequence[Patch], patch: Patch, files: set[str]) -> list[Patch]:
    """The others' edits of the files that ``patch`` edits: no other file changes."""
    kept = [
        replace(other, edits=tuple(edit for edit in other.edits if edit.file in files))
        for other in series
        if other.name != patch.name and not other.codemod
    ]
    return [other for other in kept if other.edits]


def _failed(report: Path) -> set[str]:
    if not report.exists():
        return set()
    failed = set()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').partition('[')[0]}")
    return failed


def check(config: Config, names: Sequence[str]) -> Iterator[Verdict]:
    """A verdict for each patch, or for those that ``names`` names. Raises ForkError for an unknown one."""
    if unknown := set(names) - {patch.name for patch in load_series(config.patches)}:
        raise ForkError(f"there is no patch {', '.join(sorted(unknown))}")
    shop = Workshop(config, config.root / "build" / "needs")
    known = {patch.name: patch for patch in shop.series}
    chosen = [known[name] for name in names] if names else list(known.values())
    applied = [patch for patch in chosen if any(edit.applies_to(config.version) for edit in patch.edits)]
    _, told, broken = shop.run(*dict.fromkeys(patch.needs for patch in applied))
    if "passed" not in told:
        raise ForkError(f"the tests do not run at all:\n{told[-2000:]}")
    for patch in chosen:
        if patch not in applied:
            yield Verdict(patch.name, patch.needs, None, f"not for {config.version}")
        elif patch.needs.partition("[")[0] in broken:
            yield Verdict(patch.name, patch.needs, False, "its test fails with the patch too")
        else:
            yield _judge(shop, patch)


def _judge(shop: Workshop, patch: Patch) -> Verdict:
    began = time.monotonic()
    lost = shop.without(patch)
    try:
        status, told, _ = shop.run("--exitfirst", patch.needs)
    finally:
        shop.restore(patch)
    also = f"; {', '.join(lost)} went with it" if lost else ""
    seconds = time.monotonic() - began
    if status == _TESTS_FAILED:
        return Verdict(patch.name, patch.needs, True, f"fails without it{also}", seconds)
    if status > _TESTS_FAILED and any(sign in told for sign in _NOT_IMPORTED):
        return Verdict(patch.name, patch.needs, True, f"cannot be imported without it{also}", seconds)
    last = (told.strip().splitlines() or ["it says nothing"])[-1][:120]
    said = "passes without it" if status == 0 else f"pytest ends with {status}: {last}"
    return Verdict(patch.name, patch.needs, False, said + also, seconds)

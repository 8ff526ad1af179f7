# SPDX-License-Identifier: Apache-2.0
"""The effect on upstream as a unified diff. Made when asked for and printed; the repository holds none."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from fork.apply import Tree
from fork.upstream import UpstreamWheel

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_OFF = "\033[0m"


def unified(upstream: UpstreamWheel, tree: Tree, *, added: bool, colour: bool) -> Iterator[str]:
    for file, before, after in _pairs(upstream, tree, added):
        old = "/dev/null" if before is None else f"upstream/{file}"
        for line in difflib.unified_diff(
            (before or "").splitlines(), after.splitlines(), old, f"fork/{file}", lineterm=""
        ):
            paint = _COLOURS.get(line[:1]) if colour else None
            yield f"{paint}{line}{_OFF}" if paint else line


def stat(upstream: UpstreamWheel, tree: Tree, *, added: bool) -> Iterator[str]:
    total_plus = total_minus = count = 0
    for file, before, after in _pairs(upstream, tree, added):
        plus = minus = 0
        for line in difflib.unified_diff((before or "").splitlines(), after.splitlines(), lineterm="", n=0):
            plus += line.startswith("+") and not line.startswith("+++")
            minus += line.startswith("-") and not line.startswith("---")
        total_plus, total_minus, count = total_plus + plus, total_minus + minus, count + 1
        yield f"{plus:6}+ {minus:5}-  {file}{'  (added)' if before is None else ''}"
    yield f"{total_plus:6}+ {total_minus:5}-  in {count} files"


def _pairs(upstream: UpstreamWheel, tree: Tree, added: bool) -> Iterator[tuple[str, str | None, str]]:
    for file, content in sorted(tree.edited.items()):
        yield file, upstream[file].decode(), content.decode()
    for file, content in sorted(tree.added.items()) if added else []:
        yield file, None, content.decode(errors="replace")

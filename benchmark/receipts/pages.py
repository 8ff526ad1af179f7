# SPDX-License-Identifier: Apache-2.0
"""Finds the figures in the pages, and puts there what the receipts say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmark.receipt import REPO
from benchmark.receipts.figures import FIGURES
from benchmark.receipts.store import Store

_FIGURE = re.compile(r"(<!-- figure (?P<name>\S+) -->)(?P<text>.*?)(<!-- /figure -->)", re.S)
_AT_START = re.compile(r"^ {0,3}<!-- figure \S+ -->(?=.)", re.M)
_MARK = re.compile(r"<!-- /?figure\b")


def pages(root: Path = REPO) -> Iterator[Path]:
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))
    yield from sorted((root / "sgl-kernel").glob("*.md"))


def update(store: Store, *, write: bool, root: Path = REPO) -> list[str]:
    """A line for each page that differs from its receipts and, unless ``write``, was left so; and for each figure that
    there is no function for, or whose receipt is missing."""
    told: list[str] = []
    for page in pages(root):
        if not page.exists():
            continue
        text = page.read_text(encoding="utf-8")
        problems: list[str] = []
        made = _FIGURE.sub(lambda match: _made(match, store, problems), text)
        if len(_MARK.findall(text)) != 2 * len(_FIGURE.findall(text)):
            problems.append("a mark of a figure without its other one")
        if begun := _AT_START.search(made):  # Markdown takes such a line for HTML
            line = made.count("\n", 0, begun.start()) + 1
            problems.append(f"line {line}: a figure may not begin a line of text")
        shown = page.relative_to(root)
        told += [f"{shown}: {problem}" for problem in problems]
        if made != text and write:
            page.write_text(made, encoding="utf-8")
        elif made != text:
            lines = _differing(text, made)
            told.append(f"{shown}: not what the receipts say, line {lines}; `python -m benchmark.receipts --write`")
    return told


def _made(match: re.Match[str], store: Store, problems: list[str]) -> str:
    name, text = match["name"], match["text"]
    if name not in FIGURES:
        problems.append(f"there is no figure {name}; known are {', '.join(sorted(FIGURES))}")
        return match[0]
    try:
        made = FIGURES[name](store)
    except (OSError, KeyError, ValueError, IndexError, ZeroDivisionError) as error:
        problems.append(f"figure {name} cannot be made: {type(error).__name__}: {error}")
        return match[0]
    block = text.startswith("\n")  # with empty lines, so that every Markdown sees the table
    return match[1] + (f"\n\n{made}\n\n" if block else made) + match[4]


def _differing(old: str, new: str) -> int:
    pairs = zip(old.splitlines(), new.splitlines(), strict=False)
    return next((number for number, (a, b) in enumerate(pairs, 1) if a != b), 0)

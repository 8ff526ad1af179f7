# SPDX-License-Identifier: Apache-2.0
"""Is the upstream that is installed the one that this fork was made for?

Another release, or single files of one, may have been put over the fork. The wheel carries a table of the symbols that
the fork uses, by file, with the hash of each file. A file with another hash is parsed; a symbol that it lacks, or has
with another signature, is a problem, and so is an edited file that is upstream's again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import signatures

MANIFEST = "_ddtree_manifest.json"
TABLE = "_ddtree_symbols.json"
MARK = "# Modified by sglang-ddtree"
_WIDTH = 100


@dataclass(frozen=True)
class Problem:
    """``what`` is a dotted symbol or a file; the others say what the fork was made for, and what is there."""

    what: str
    expected: str
    found: str


@dataclass(frozen=True)
class Result:
    """``changed`` are files that differ from those that the fork was made of, but still have what it uses."""

    problems: list[Problem]
    changed: list[str]


def examine(package: Path) -> Result:
    """Compares the package in the folder ``package`` with the table and the manifest in it.

    Raises OSError or ValueError when one of these cannot be read.
    """
    table = json.loads((package / TABLE).read_text(encoding="utf-8"))
    manifest = json.loads((package / MANIFEST).read_text(encoding="utf-8"))
    result = Result([], [])
    for file in manifest["edited"]:
        _edited(package, file, result)
    for file, entry in table["files"].items():
        _symbols(package, file, entry, result)
    return result


def _edited(package: Path, file: str, result: Result) -> None:
    try:
        with (package.parent / file).open(encoding="utf-8") as opened:
            head = opened.readline() + opened.readline()
    except OSError:
        result.problems.append(Problem(file, "edited by the fork", "no such file"))
        return
    if MARK not in head:
        result.problems.append(Problem(file, "edited by the fork", "not edited: a file of upstream's was put over it"))


def _symbols(package: Path, file: str, entry: dict[str, Any], result: Result) -> None:
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    try:
        content = (package.parent / file).read_bytes()
        if hashlib.sha256(content).hexdigest() == entry["sha256"]:
            return
        there = signatures.read(ast.parse(content))
    except OSError:
        result.problems.append(Problem(module, f"{len(entry['symbols'])} symbols", "no such module"))
        return
    except SyntaxError as error:
        result.problems.append(Problem(module, f"{len(entry['symbols'])} symbols", f"line {error.lineno}: {error.msg}"))
        return
    wrong = [
        Problem(f"{module}.{symbol}", signature, there.get(symbol, "nothing of that name"))
        for symbol, signature in entry["symbols"].items()
        if there.get(symbol) != signature
    ]
    if wrong:
        result.problems.extend(wrong)
    else:
        result.changed.append(file)


def as_text(problems: list[Problem]) -> str:
    """The problems, three lines each."""
    lines = []
    for problem in problems:
        expected, found = signatures.contrasted(problem.expected, problem.found)
        lines.append(f"  {problem.what}")
        lines += [
            f"    {label}  {textwrap.shorten(text, _WIDTH, placeholder=' ...')}"
            for label, text in (("expected", expected), ("found   ", found))
        ]
    return "\n".join(lines)

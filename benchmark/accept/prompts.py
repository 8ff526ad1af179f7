# SPDX-License-Identifier: Apache-2.0
"""Prompts from the held-out files, kept in ``prompts.json`` so that a benchmark needs no corpus.

``python -m benchmark.accept.prompts [LIB OR ARCHIVE]`` makes that file anew.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmark.tiny import corpus

FILE = Path(__file__).with_name("prompts.json")
KINDS = ("code", "docstring", "prose")
EACH = 10
_CHARACTERS = 500
_SEED = 20


@dataclass(frozen=True)
class Prompt:
    """The beginning of something, its kind and where it stands."""

    kind: str
    source: str
    text: str


def load() -> list[Prompt]:
    """The prompts, by kind."""
    return [Prompt(**entry) for entry in json.loads(FILE.read_text())]


def make(text: corpus.Corpus) -> list[Prompt]:
    """Draw ``EACH`` prompts a kind from held-out library files; tests are left out."""
    draw = random.Random(_SEED)
    found: dict[str, list[Prompt]] = {kind: [] for kind in KINDS}
    for source in text.held_out:
        if source.path.startswith("pydoc_data"):
            found["prose"] += [Prompt("prose", source.path, piece) for piece in _topics(source.text)]
        elif not source.is_test:
            ends = [(match.end(), "code") for match in re.finditer(r"^ *def \w+\([^)]*\):\n", source.text, re.M)]
            ends += [(match.end(), "docstring") for match in re.finditer(r'^ *"""[^"\n]{20,}\n', source.text, re.M)]
            found_here = [Prompt(kind, source.path, _before(source.text, end)) for end, kind in ends]
            for prompt in found_here:
                found[prompt.kind].append(prompt)
    return [prompt for kind in KINDS for prompt in draw.sample(found[kind], EACH)]


def _before(text: str, end: int) -> str:
    """The last ``_CHARACTERS`` or so before ``end``, from the start of a line."""
    start = max(0, end - _CHARACTERS)
    return text[0 if start == 0 else text.find("\n", start) + 1 : end]


def _topics(source: str) -> list[str]:
    """The beginnings of the paragraphs in Python's help topics, as plain text."""
    topics = ast.literal_eval(source[source.index("{") :])
    paragraphs = [p for topic in topics.values() for p in topic.split("\n\n") if p[:1].isalpha() and len(p) > 300]
    return [paragraph[: paragraph.index(" ", 150)] for paragraph in paragraphs]


def main() -> None:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    prompts = make(corpus.load(place))
    FILE.write_text(json.dumps([asdict(prompt) for prompt in prompts], indent=1) + "\n")
    print(f"{FILE}: {len(prompts)} prompts")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Is a receipt what it should be: by the schema, and in what a schema cannot say?"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from benchmark.receipt import REPO, sources_hash
from benchmark.receipts import store

# Places of one machine: a receipt is read elsewhere.
_PRIVATE = re.compile(r"(?<![\w.])/(?:home|root|tmp|mnt|work|workspace|Users)/|://")
_CLOSE = 1e-6


@cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((Path(__file__).parent / "schema.json").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(schema)


def problems(path: Path) -> list[str]:
    """What is wrong with a receipt, a line each."""
    shown = path.relative_to(REPO) if path.is_relative_to(REPO) else path
    try:
        receipt = store.read(path)
    except (OSError, ValueError) as error:
        return [f"{shown}: {error}"]
    found = [f"{_place(error)}: {error.message[:160]}" for error in _validator().iter_errors(receipt)]
    if not found:
        found = [*_name(path, receipt), *_private(receipt, ""), *_medians(receipt["results"], "results")]
    return [f"{shown}: {problem}" for problem in found]


def notes(path: Path) -> Iterator[str]:
    """What a reader should know: it cannot be repeated, or the sources have changed since."""
    receipt = store.read(path)
    if receipt["dirty"]:
        yield f"{path.name}: made from a tree with changes, of which {receipt['commit'][:7]} knows nothing"
    sources = [REPO / name for name in receipt.get("sources", ())]
    if sources and not all(source.is_file() for source in sources):
        yield f"{path.name}: sources that it was made from are gone"
    elif sources and sources_hash(sources) != receipt["sources_sha256"]:
        yield f"{path.name}: its sources have changed since {receipt['commit'][:7]}"


def _place(error: jsonschema.ValidationError) -> str:
    return ".".join(map(str, error.absolute_path)) or "the receipt"


def _name(path: Path, receipt: dict[str, Any]) -> Iterator[str]:
    gpu = receipt["host"]["gpu"]
    if gpu and gpu.replace(" ", "-") not in path.stem:
        yield f"measured on {gpu}, which its file's name should say"


def _private(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _private(item, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _private(item, f"{place}.{index}")
    elif isinstance(value, str) and _PRIVATE.search(value):
        yield f"{place}: names a place of one machine: {value[:80]!r}"


def _medians(value: Any, place: str) -> Iterator[str]:
    """``median_X`` beside ``readings_X`` is the median of them."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _medians(item, f"{place}.{index}")
    elif isinstance(value, dict):
        for key, item in value.items():
            readings = value.get(f"readings_{key.removeprefix('median_')}") if key.startswith("median_") else None
            if isinstance(readings, list) and readings:
                true = statistics.median(readings)
                if abs(true - item) > _CLOSE * abs(true):
                    yield f"{place}.{key} is {item}, but the median of its readings is {true}"
            yield from _medians(item, f"{place}.{key}")

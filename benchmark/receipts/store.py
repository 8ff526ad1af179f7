# SPDX-License-Identifier: Apache-2.0
"""Reads receipts by the name of their file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmark.receipt import REPO

RESULTS = REPO / "benchmark" / "results"


def files() -> list[Path]:
    return sorted(RESULTS.rglob("*.json"))


def read(path: Path) -> dict[str, Any]:
    """Raises ValueError for what JSON does not allow, such as NaN."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number in JSON")

    receipt = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    if not isinstance(receipt, dict):
        raise ValueError("not a JSON object")
    return receipt


class Store:
    """Receipts by their path below ``benchmark/results`` without the suffix."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self._read: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self._read:
            self._read[name] = read(self.folder / f"{name}.json")
        return self._read[name]

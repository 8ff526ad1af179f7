# SPDX-License-Identifier: Apache-2.0
"""Receipts: one JSON file beside each number that we claim, enough to see where it came from and to repeat it.

Schema 1, which `benchmark/receipts/schema.json` states for machines and `make receipts` checks:

| key | holds |
|---|---|
| schema | 1 |
| name | what was measured or tested, such as "bench_mla_tree_verify" |
| created | UTC, ISO 8601 |
| commit, dirty | git revision of the tree and whether it had changes; null outside a checkout (set RECEIPT_COMMIT) |
| sources | the source files that the caller names, relative to the repository; older receipts lack it |
| sources_sha256 | hash of these files; also valid outside a checkout |
| command | the command line |
| host | gpu, driver, sm_count, memory_bytes (null without a card), machine, python |
| versions | installed version of each package that took part, null when absent |
| config | the run's settings |
| results | a list of objects, raw values included; each benchmark documents its own keys and units |
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "triton", "apache-tvm-ffi", "sglang", "sglang-kernel-ddtree", "flashinfer-python", "transformers")


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _host() -> dict[str, Any]:
    host: dict[str, Any] = {
        "gpu": None,
        "driver": None,
        "sm_count": None,
        "memory_bytes": None,
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    import torch

    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        host |= {"gpu": card.name, "sm_count": card.multi_processor_count, "memory_bytes": card.total_memory}
        driver = _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        host["driver"] = driver.splitlines()[0] if driver else None
    return host


def _versions() -> dict[str, str | None]:
    import torch

    return {name: _version(name) for name in PACKAGES} | {"cuda": torch.version.cuda}


def sources_hash(files: Iterable[Path]) -> str:
    """sha256 over the names (relative to the repository) and contents of `files`, in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.resolve().relative_to(REPO)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def make_receipt(
    name: str, results: list[dict[str, Any]], *, config: dict[str, Any], sources: Iterable[Path]
) -> dict[str, Any]:
    """A receipt as a dict; `sources` are the files whose hash it carries."""
    sources = list(sources)
    status = _run("git", "status", "--porcelain", "--untracked-files=no")
    return {
        "schema": 1,
        "name": name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _run("git", "rev-parse", "HEAD") or os.environ.get("RECEIPT_COMMIT"),
        "dirty": None if status is None else bool(status),
        "sources": sorted(str(path.resolve().relative_to(REPO)) for path in sources),
        "sources_sha256": sources_hash(sources),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "host": _host(),
        "versions": _versions(),
        "config": config,
        "results": results,
    }


def write_receipt(path: Path, receipt: dict[str, Any]) -> None:
    """Writes `receipt` to `path`, making its folder; replaces what was there in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(json.dumps(receipt, indent=1) + "\n")
    partial.replace(path)

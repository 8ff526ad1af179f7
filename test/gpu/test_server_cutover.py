# SPDX-License-Identifier: Apache-2.0
"""``sglang-ddtree cutover`` on CUDA: from SGLang's Triton verify over the comparison to our kernel, and back.

With CUTOVER_RECORDS=FOLDER the records stay there, and a receipt of what they say.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_harness.config import GpuConfig

from benchmark.receipt import REPO, make_receipt, write_receipt

KEY = "sesame"
OPTIONS = ("--admin-api-key", KEY, "--ddtree-verify", "off")
# One that leaves no choice to rounding, and one that has near ties.
CONFIGS = [GpuConfig(pair, graph_sizes=(1,), options=OPTIONS) for pair in ("cycle-mla", "trained-mla")]
pytestmark = pytest.mark.parametrize("server", CONFIGS, indirect=True, ids=str)

# The host sets the speed of models as small as these, and the machine may have other work. Limits of the comparison are
# the tool's defaults.
SMALL = ("--yes", "--min-speed-ratio", "0.3", "--tokens", "128", "--repeats", "1")


@pytest.fixture(scope="module")
def told() -> Iterator[list[dict[str, Any]]]:
    """What the records say, for the receipt."""
    results: list[dict[str, Any]] = []
    yield results
    if (folder := os.environ.get("CUTOVER_RECORDS")) and results:
        receipt = make_receipt(
            "cutover",
            results,
            config={"options": SMALL, "limits": results[0]["limits"]},
            sources=[Path(__file__), *(REPO / "python" / "sglang_ddtree").rglob("*.py")],
        )
        card = (receipt["host"]["gpu"] or "none").replace(" ", "-")
        write_receipt(Path(folder) / f"cutover-{card}.json", receipt)


def summary(pair: str, record: dict[str, Any]) -> dict[str, Any]:
    """The part of a record that a receipt keeps; speeds, which other work disturbs, stay out."""
    compared = [rank for step in record["steps"] for rank in step.get("validation", ())]
    return {
        "pair": pair,
        **{name: record.get(name) for name in ("target", "method", "status", "limits")},
        "before": record["before"]["mode"],
        "verdict": record.get("verdict", {}).get("found", ("none",))[0],
        "switch_seconds": next((step["seconds"] for step in record["steps"] if step["step"] == "switch"), None),
        "validation": compared,
    }


def test_there_and_back(server, request, tmp_path, told):
    state = tmp_path / "state"

    def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "sglang_ddtree", command, "--url", server.url, "--state-dir", str(state)]
        environ = {**os.environ, "SGLANG_DDTREE_ADMIN_KEY": KEY}
        done = subprocess.run([*line, *arguments], env=environ, capture_output=True, text=True, check=False)
        print(done.stdout, done.stderr)
        return done

    try:
        shown = run("status")
        assert "mode: off" in shown.stdout and "off: triton" in shown.stdout and "CUDA" in shown.stdout
        assert run("cutover", "--to", "validate", *SMALL).returncode == 0
        assert run("cutover", "--to", "on", *SMALL).returncode == 0
        assert "mode: on" in run("status").stdout
        assert run("rollback", "--yes").returncode == 0
        assert "mode: validate" in run("status").stdout
        assert run("cutover", "--to", "off", *SMALL).returncode == 0
    finally:
        paths = sorted(state.glob("*Z.json"))
        pair = request.node.callspec.params["server"].pair
        told += [summary(pair, json.loads(path.read_text())) for path in paths]
        if folder := os.environ.get("CUTOVER_RECORDS"):
            for path in paths:
                shutil.copy(path, Path(folder) / f"record-{path.name}")
    (seen,) = told[-len(paths)]["validation"]
    assert seen["steps"] > 50 and seen["rows_not_finite"] == 0

# SPDX-License-Identifier: Apache-2.0
"""``sglang-ddtree cutover`` on CUDA: from SGLang's Triton verify over the comparison to our kernel, and back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_harness.config import GpuConfig

KEY = "sesame"
OPTIONS = ("--admin-api-key", KEY, "--ddtree-verify", "off")
# One that leaves no choice to rounding, and one that has near ties, and room for the prompt of some thousand tokens.
CONFIGS = [GpuConfig(pair, graph_sizes=(1,), options=OPTIONS) for pair in ("cycle-mla", "trained-mla")]
pytestmark = pytest.mark.parametrize("server", CONFIGS, indirect=True, ids=str)


def test_there_and_back(server, tmp_path):
    """Keeps the records where CUTOVER_RECORDS says, if it is set."""
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
        # Both kernels, in an eager or a captured step: slower than either.
        assert run("cutover", "--to", "validate", "--yes", "--min-speed-ratio", "0.05").returncode == 0
        assert run("cutover", "--to", "on", "--yes").returncode == 0
        assert "mode: on" in run("status").stdout
        assert run("rollback", "--yes").returncode == 0
        assert "mode: validate" in run("status").stdout
        assert run("cutover", "--to", "off", "--yes").returncode == 0
    finally:
        if folder := os.environ.get("CUTOVER_RECORDS"):
            for path in state.glob("*.json"):
                shutil.copy(path, Path(folder) / f"cutover-{path.name}")
    compared = [
        step["validation"][0]
        for path in sorted(state.glob("*Z.json"))
        for step in json.loads(path.read_text())["steps"]
        if step["step"] == "compare the kernels"
    ]
    assert compared and compared[0]["steps"] > 50 and compared[0]["rows_not_finite"] == 0

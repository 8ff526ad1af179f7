# SPDX-License-Identifier: Apache-2.0
"""The kernels compile for sm_120a without spills and within a block's shared memory; and the report would notice if not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import report


@pytest.fixture(scope="module")
def tools() -> tuple[str, str]:
    try:
        return report.find_nvcc(), report.find_cuobjdump()
    except report.ToolMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(f"CI must compile the kernels: {missing}")
        pytest.skip(f"the CUDA kernels are NOT checked here: {missing}")


def test_kernels_fit_sm_120(tools: tuple[str, str]) -> None:
    kernels = report.collect(["120a"])
    print(report.table(kernels))
    assert {"tree_verify_kernel<1>", "tree_verify_kernel<2>"} <= {k.name for k in kernels}
    assert not [problem for kernel in kernels for problem in kernel.problems()]


SPILLS = """
__global__ void __launch_bounds__(1024, 2) spilling(float* x) {
  float a[64];
  for (int i = 0; i < 64; ++i) a[i] = x[i * 1024 + threadIdx.x];
  for (int n = 0; n < 9; ++n)
    for (int i = 0; i < 64; ++i) a[i] = a[i] * a[(i * 7 + 3) % 64] + a[(i * 11 + 5) % 64];
  for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = a[i];
}
"""


def test_a_spill_and_missing_instructions_are_seen(
    tools: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = tmp_path / "csrc" / "spilling"
    op.mkdir(parents=True)
    (op / "launch.cu").write_text(SPILLS)
    monkeypatch.setattr(report, "CSRC", tmp_path / "csrc")
    facts = {"spilling": {"spilling": (200_000, True)}}
    (kernel,) = report.compile_unit(op / "launch.cu", "120a", *tools, facts, tmp_path)
    problems = " ".join(kernel.problems())
    assert "spills" in problems and "200000 bytes of shared memory" in problems and "no LDSM, HMMA" in problems


def test_code_that_sm_120_lacks_does_not_pass(tools: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    op = tmp_path / "csrc" / "hopper"
    op.mkdir(parents=True)
    (op / "launch.cu").write_text('__global__ void k() { asm volatile("wgmma.fence.sync.aligned;"); }\n')
    monkeypatch.setattr(report, "CSRC", tmp_path / "csrc")
    with pytest.raises(RuntimeError, match="wgmma"):
        report.compile_unit(op / "launch.cu", "120a", *tools, {"hopper": {}}, tmp_path)


def test_dynamic_shared_memory_must_be_declared(tmp_path: Path) -> None:
    (tmp_path / "kernel.cuh").write_text("extern __shared__ char memory[];\n")
    with pytest.raises(RuntimeError, match=r"report\.h"):
        report.operator_facts(tmp_path, "nvcc", tmp_path)

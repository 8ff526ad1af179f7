# SPDX-License-Identifier: Apache-2.0
"""A process without any SGLang variable set: does it choose the CPU engine, and only when it should?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from sglang._cpu import environment


def _run(code: str, *arguments: str, **variables: str) -> str:
    """Run Python with the CPU engine's variables unset; stdout of a successful run."""
    clean = {k: v for k, v in os.environ.items() if k not in (environment.ENGINE_VARIABLE, "OMP_NUM_THREADS")}
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_server_arguments_import_without_any_variable():
    """The import that a CPU-only machine fails at first, and the package that PyPI does not have."""
    output = _run(
        "import sglang.srt.server_args, sglang.srt.speculative.eagle_utils, sgl_kernel, torchvision.transforms, os;"
        "print(os.environ['SGLANG_USE_CPU_ENGINE'], os.environ['OMP_NUM_THREADS'], sgl_kernel.__version__)",
        "--device",
        "cpu",
    )
    engine, threads, kernel_version = output.split()
    assert engine == "1"
    assert int(threads) >= 1
    assert "cpu" in kernel_version


def test_installed_sgl_kernel_comes_first(tmp_path):
    package = tmp_path / "sgl_kernel"
    package.mkdir()
    (package / "__init__.py").write_text("origin = 'installed'\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    output = _run(
        "import sglang._cpu, sgl_kernel; sglang._cpu.activate(); print(sgl_kernel.origin)",
        "--device=cpu",
        PYTHONPATH=paths,
    )
    assert output.strip() == "installed"


def test_workers_inherit_the_choice():
    """A scheduler process has no --device on its command line."""
    child = "import os; print(os.environ['SGLANG_USE_CPU_ENGINE'])"
    output = _run(
        "import sglang._cpu, subprocess, sys;"
        f"print(subprocess.check_output([sys.executable, '-c', {child!r}], text=True))",
        "--device",
        "cpu",
    )
    assert output.split() == ["1"]


@pytest.fixture
def machine(monkeypatch):
    """A machine with an accelerator and a GPU build of torch; no variable set."""
    monkeypatch.delenv(environment.ENGINE_VARIABLE, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(environment, "version", lambda package: "2.13.0+cu130")
    monkeypatch.setattr(environment, "glob", lambda pattern: ["/dev/nvidiactl"] if pattern == "/dev/nvidiactl" else [])
    monkeypatch.setattr(environment.sys, "platform", "linux")
    return monkeypatch


@pytest.mark.parametrize(
    "argv,chosen",
    [
        (["serve"], False),
        (["serve", "--device", "cuda"], False),
        (["serve", "--device"], False),
        (["serve", "--device", "cpu"], True),
        (["serve", "--device=cpu"], True),
        (["serve", "--device=cpu:0"], False),
    ],
)
def test_machine_with_a_gpu(machine, argv, chosen):
    environment.prepare_environment(argv)
    assert environment.uses_cpu_engine() is chosen
    assert ("OMP_NUM_THREADS" in os.environ) is chosen
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("" if chosen else "0,1")


def test_machine_without_a_gpu(machine):
    machine.setattr(environment, "glob", lambda pattern: [])
    environment.prepare_environment(["serve"])
    assert environment.uses_cpu_engine()


def test_cpu_build_of_torch_beside_a_gpu(machine):
    machine.setattr(environment, "version", lambda package: "2.13.0+cpu")
    environment.prepare_environment(["serve"])
    assert environment.uses_cpu_engine()


def test_other_device_on_a_machine_without_a_gpu(machine):
    machine.setattr(environment, "glob", lambda pattern: [])
    environment.prepare_environment(["serve", "--device", "cuda"])
    assert not environment.uses_cpu_engine()


def test_variables_that_are_set_stay(machine):
    machine.setenv(environment.ENGINE_VARIABLE, "0")
    environment.prepare_environment(["serve", "--device", "cpu"])
    assert not environment.uses_cpu_engine()
    machine.setenv(environment.ENGINE_VARIABLE, "1")
    machine.setenv("OMP_NUM_THREADS", "7")
    environment.prepare_environment(["serve"])
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize("cores,threads", [(1, 1), (2, 1), (3, 1), (16, 14)])
def test_thread_count(machine, cores, threads):
    machine.setenv(environment.ENGINE_VARIABLE, "1")
    machine.setattr(environment, "_usable_cores", lambda: cores)
    environment.prepare_environment(["serve"])
    assert os.environ["OMP_NUM_THREADS"] == str(threads)

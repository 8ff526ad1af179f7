# SPDX-License-Identifier: Apache-2.0
"""Decide whether this process runs on the CPU, and set the environment variables that follow from it."""

from __future__ import annotations

import os
import sys
from glob import glob
from importlib.metadata import PackageNotFoundError, version

ENGINE_VARIABLE = "SGLANG_USE_CPU_ENGINE"

# Device files on Linux of the accelerators that SGLang supports: NVIDIA (also under WSL), AMD, Intel, Ascend, Moore
# Threads.
_ACCELERATOR_FILES = (
    "/dev/nvidiactl",
    "/dev/dxg",
    "/dev/kfd",
    "/dev/dri/renderD*",
    "/dev/davinci*",
    "/dev/mtgpu*",
)


def uses_cpu_engine() -> bool:
    """Whether SGLang will take its CPU paths in this process."""
    return os.environ.get(ENGINE_VARIABLE) == "1"


def prepare_environment(argv: list[str] | None = None) -> None:
    """Choose the CPU engine when it is asked for or nothing else is there; then hide GPUs and size the thread pool.

    Args:
        argv: command line to look for ``--device`` in; the process's own when left out.

    The engine variable and the thread count stay as the user set them. Worker processes inherit all of it.
    """
    if ENGINE_VARIABLE not in os.environ and _wants_cpu(sys.argv if argv is None else argv):
        os.environ[ENGINE_VARIABLE] = "1"
    if uses_cpu_engine():
        # In many places SGLang asks "is there a GPU?" before "is this the CPU engine?", and would hand CPU tensors to
        # CUDA.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # Tokenizer and detokenizer have processes of their own; OpenMP workers that spin on their cores stall a step
        # for seconds.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _usable_cores() - 2)))


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _wants_cpu(argv: list[str]) -> bool:
    device = _device_option(argv)
    if device is not None:
        return device == "cpu"
    return sys.platform == "linux" and (_torch_is_cpu_build() or not _has_accelerator())


def _device_option(argv: list[str]) -> str | None:
    """The value of ``--device`` on the command line, which may be written with a space or with ``=``."""
    for argument, following in zip(argv, [*argv[1:], None], strict=True):
        if argument == "--device":
            return following
        if argument.startswith("--device="):
            return argument.removeprefix("--device=")
    return None


def _torch_is_cpu_build() -> bool:
    """Read from the package metadata: importing torch here would fix its thread count too early."""
    try:
        return version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False


def _has_accelerator() -> bool:
    return any(glob(pattern) for pattern in _ACCELERATOR_FILES)

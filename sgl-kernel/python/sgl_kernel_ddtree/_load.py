# SPDX-License-Identifier: Apache-2.0
"""Finds the library that runs on a device: the prebuilt one, else the same sources compiled by SGLang's JIT.

A library says which targets it holds, so a missing one is seen before the first launch. Nothing is compiled in the middle
of serving: the server calls `ensure_loaded` before it reports that it is ready.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from pathlib import Path
from typing import NamedTuple

import torch
import tvm_ffi

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parent
_LIB_DIR = _PACKAGE / "lib"

# Targets whose code a card of this compute capability can run, best first. The "a" targets run on their own card only;
# code for 8.0 and 8.6 also runs on later 8.x. The first is what the JIT compiles for.
_RUNS_ON: dict[tuple[int, int], tuple[str, ...]] = {
    (12, 0): ("120a",),
    (12, 1): ("121a",),
    (9, 0): ("90a",),
    (8, 9): ("89", "86", "80"),
    (8, 6): ("86", "80"),
    (8, 0): ("80",),
}


class BuildInfo(NamedTuple):
    """What one library holds: `archs` such as ("120a",) or ("cpu",), and the CUDA toolkit's version (0 without)."""

    path: str
    archs: tuple[str, ...]
    cuda: int


class LoadedLibrary(NamedTuple):
    module: tvm_ffi.Module
    info: BuildInfo
    origin: str  # "prebuilt" or "jit"


def _read_info(module: tvm_ffi.Module, path: str) -> BuildInfo:
    fields = dict(item.split("=") for item in str(module.build_info()).split())
    return BuildInfo(path, tuple(fields["archs"].split("_")), int(fields["cuda"]))


@functools.cache
def _prebuilt(name: str) -> LoadedLibrary | None:
    path = _LIB_DIR / f"lib{name}.so"
    if not path.is_file():
        return None
    module = tvm_ffi.load_module(str(path))
    return LoadedLibrary(module, _read_info(module, str(path)), "prebuilt")


def source_dir() -> Path:
    """The folder of the C++ and CUDA sources: inside the installed package, or `sgl-kernel/csrc` of a checkout."""
    for candidate in (_PACKAGE / "csrc", _PACKAGE.parent.parent / "csrc"):
        if candidate.is_dir():
            return candidate
    raise RuntimeError(f"the sources of sgl_kernel_ddtree are missing beside {_PACKAGE}: reinstall sglang-kernel-ddtree")


def build_info() -> dict[str, BuildInfo]:
    """The prebuilt libraries of this installation by name: "ddtree_cpu" and, where it was built, "ddtree_cuda"."""
    found = {name: _prebuilt(name) for name in ("ddtree_cpu", "ddtree_cuda")}
    return {name: library.info for name, library in found.items() if library is not None}


def _compile_for(index: int, capability: tuple[int, int], reason: str) -> LoadedLibrary:
    target = _RUNS_ON[capability][0]
    if importlib.util.find_spec("sglang") is None:
        raise RuntimeError(
            f"{reason}. Rebuild with `DDTREE_CUDA_ARCHS={target} pip install ./sgl-kernel`, or install sglang and nvcc 13, "
            "which compile the sources at the first start."
        )
    from sglang.kernels.jit.utils import load_jit
    from sglang.kernels.jit.utils.arch import override_jit_cuda_arch

    root = source_dir()
    logger.info("sgl_kernel_ddtree: %s; compiling for sm_%s, once, from %s", reason, target, root)
    sources = [p for p in sorted(root.rglob("*")) if not p.relative_to(root).parts[0].startswith("bench_")]
    define = ["-DDDTREE_CUDA", f"-DDDTREE_ARCHS={target}"]
    # The target of the wheel, not SGLang's own choice (12.0 -> "f"): both must be the code that was tested.
    suffix = target.lstrip("0123456789")
    try:
        with torch.cuda.device(index), override_jit_cuda_arch(*capability, suffix):
            module = load_jit(
                "ddtree_cuda",
                cpp_files=[str(p) for p in sources if p.name == "binding.cpp" or p.match("common/*.cpp")],
                cuda_files=[str(p) for p in sources if p.suffix == ".cu"],
                extra_cflags=define + _cuda_include_flags(),
                extra_cuda_cflags=define,
                extra_include_paths=[str(root)],
                header_only=False,
            )
    except Exception as error:  # no nvcc, an old one, no compiler, SGLANG_CRASH_ON_JIT_COMPILE: each its own type
        raise RuntimeError(
            f"{reason}, and compiling for sm_{target} failed: {error}\nSet CUDA_HOME to a toolkit with nvcc 13, or rebuild "
            f"where there is one with `DDTREE_CUDA_ARCHS={target} pip install ./sgl-kernel`."
        ) from error
    return LoadedLibrary(module, _read_info(module, "SGLang's JIT cache"), "jit")


def _cuda_include_flags() -> list[str]:
    # The bindings are plain C++ and include cuda_runtime.h, which the host compiler does not find by itself.
    from sglang.kernels.jit.utils.compile.toolchain import cuda_home

    return [f"-I{cuda_home()}/include"]


@functools.cache
def _load(device_type: str, index: int) -> LoadedLibrary:
    if device_type == "cpu":
        library = _prebuilt("ddtree_cpu")
        if library is None:
            raise RuntimeError(
                f"libddtree_cpu.so is not in {_LIB_DIR}: run `make kernel` in a checkout or reinstall sglang-kernel-ddtree"
            )
    else:
        capability = torch.cuda.get_device_capability(index)
        if capability not in _RUNS_ON:
            raise RuntimeError(
                f"{torch.cuda.get_device_name(index)} has compute capability {capability[0]}.{capability[1]}; these kernels "
                f"run on {', '.join(f'{a}.{b}' for a, b in _RUNS_ON)}"
            )
        library = _prebuilt("ddtree_cuda")
        if library is None:
            library = _compile_for(index, capability, f"libddtree_cuda.so is not in {_LIB_DIR}")
        elif not set(library.info.archs) & set(_RUNS_ON[capability]):
            held = ", ".join(library.info.archs)
            reason = f"{library.info.path} holds code for {held}, not for {torch.cuda.get_device_name(index)}"
            library = _compile_for(index, capability, reason)
    logger.info(
        "sgl_kernel_ddtree on %s: %s library, targets %s, %s",
        device_type if device_type == "cpu" else f"cuda:{index}",
        library.origin,
        "/".join(library.info.archs),
        library.info.path,
    )
    return library


def _load_for(device: torch.device) -> LoadedLibrary:
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"sgl_kernel_ddtree runs on cpu and cuda devices, not on {device}")
    index = 0
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
    return _load(device.type, index)


def load(device: torch.device) -> tvm_ffi.Module:
    """The module whose operators run on `device`; loaded (or compiled) on the first call for it, then cached."""
    return _load_for(device).module


def ensure_loaded(device: torch.device | str) -> BuildInfo:
    """Loads what `device` needs now, compiling it if it must, and says what was loaded.

    Call it before a server reports ready. Raises RuntimeError when no library serves the device and none can be compiled.
    """
    return _load_for(torch.device(device)).info

# SPDX-License-Identifier: Apache-2.0
"""Import hooks of the CPU engine: a torchvision built for CUDA, and the missing CPU build of ``sgl_kernel``."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import spec_from_file_location
from pathlib import Path

_EMBEDDED_SGL_KERNEL = Path(__file__).parent / "sgl_kernel"


class _TorchvisionFinder(MetaPathFinder):
    """Declare the operators whose fake kernels torchvision registers on import; once, then step aside.

    PyPI's torchvision is built for CUDA. Its extension does not load beside a CPU torch, so its own declarations are
    missing and ``import torchvision`` fails; SGLang needs only its Python transforms.
    """

    def find_spec(self, fullname: str, path=None, target=None) -> ModuleSpec | None:
        if fullname != "torchvision":
            return None
        sys.meta_path.remove(self)
        import torch

        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        return PathFinder.find_spec(fullname, path)


class _SglKernelFinder(MetaPathFinder):
    """Resolve ``import sgl_kernel`` to the package inside the wheel; stands last, so an installed one comes first."""

    def find_spec(self, fullname: str, path=None, target=None) -> ModuleSpec | None:
        if fullname != "sgl_kernel":
            return None
        return spec_from_file_location(
            fullname,
            _EMBEDDED_SGL_KERNEL / "__init__.py",
            submodule_search_locations=[str(_EMBEDDED_SGL_KERNEL)],
        )


def tolerate_foreign_torchvision() -> None:
    """Let a torchvision built for CUDA import beside a CPU build of torch; do nothing for any other pair."""
    if "torchvision" not in sys.modules and _is_cpu_build("torch") and not _is_cpu_build("torchvision"):
        _add_once(_TorchvisionFinder, position=0)


def _is_cpu_build(package: str) -> bool:
    try:
        return version(package).endswith("+cpu")
    except PackageNotFoundError:
        return False


def provide_sgl_kernel() -> None:
    """Make the embedded CPU package importable as ``sgl_kernel`` unless another one is installed."""
    _add_once(_SglKernelFinder, position=len(sys.meta_path))


def _add_once(finder: type[MetaPathFinder], position: int) -> None:
    if not any(isinstance(present, finder) for present in sys.meta_path):
        sys.meta_path.insert(position, finder())

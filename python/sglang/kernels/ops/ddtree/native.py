# SPDX-License-Identifier: Apache-2.0
"""Finds the native side of the tree operators, once a process."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from types import ModuleType

import torch

logger = logging.getLogger(__name__)


@functools.cache
def native_op(name: str) -> Callable | None:
    """Function ``name`` of the ``sgl_kernel_ddtree`` package, or None without it.

    A package that is installed but cannot be loaded, or that lacks the
    function, is an error: a silent fall-back would hide a broken build behind
    a slow server.
    """
    try:
        package = importlib.import_module("sgl_kernel_ddtree")
    except ModuleNotFoundError as error:
        if error.name != "sgl_kernel_ddtree":
            raise
        logger.info("ddtree %s: torch (sgl_kernel_ddtree is not installed)", name)
        return None
    op = getattr(package, name, None)
    if op is None:
        raise ImportError(
            f"sgl_kernel_ddtree at {package.__file__} has no {name}; "
            "reinstall the package that belongs to this release."
        )
    logger.info("ddtree %s: sgl_kernel_ddtree (CUDA and C++)", name)
    return op


def implementation(name: str) -> str:
    """What serves operator ``name``: ``sgl_kernel_ddtree`` or ``torch``."""
    return "torch" if native_op(name) is None else "sgl_kernel_ddtree"


def native_package() -> ModuleType:
    """The ``sgl_kernel_ddtree`` package, for attention, which has no other implementation.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module("sgl_kernel_ddtree")
    except ModuleNotFoundError as error:
        if error.name != "sgl_kernel_ddtree":
            raise
        raise ImportError(
            "--attention-backend ddtree_sm120 needs the package "
            "sglang-kernel-ddtree, which is not installed: run `make kernel-install` "
            "in a checkout or install the wheel of this release."
        ) from error


def prepare_native(device: torch.device | str) -> None:
    """Load, and where it must be compile, the operators of ``device`` now.

    Raises:
        RuntimeError: a CUDA device without the package. The torch operators are
            exact there too, but a step would be thousands of launches.
    """
    device = torch.device(device)
    try:
        package = importlib.import_module("sgl_kernel_ddtree")
    except ModuleNotFoundError as error:
        if error.name != "sgl_kernel_ddtree":
            raise
        if device.type == "cuda":
            raise RuntimeError(
                "DDTREE on CUDA needs the package sglang-kernel-ddtree: "
                "`pip install ./sgl-kernel` in a checkout."
            ) from error
        return
    package.ensure_loaded(device)

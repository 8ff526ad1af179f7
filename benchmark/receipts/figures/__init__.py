# SPDX-License-Identifier: Apache-2.0
"""The figures of the pages, by name. Each is a function of the receipts that returns Markdown."""

from benchmark.receipts.figures import (
    accept,
    backend,
    cutover,
    kernel,
    kernel_gqa,
    patches,
    projection,
    serve,
    server_tests,
)
from benchmark.receipts.figures.registry import FIGURES

__all__ = [
    "FIGURES",
    "accept",
    "backend",
    "cutover",
    "kernel",
    "kernel_gqa",
    "patches",
    "projection",
    "serve",
    "server_tests",
]

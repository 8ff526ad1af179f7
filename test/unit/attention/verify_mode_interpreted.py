# SPDX-License-Identifier: Apache-2.0
"""The switch's Triton kernels on CPU tensors, in a process whose Triton interprets."""

from __future__ import annotations

import os

import torch


def start() -> None:
    """Process initializer; must run before anything imports Triton."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    import sglang  # noqa: F401  first, for the CPU engine


def add_rows(totals: torch.Tensor, served: torch.Tensor, ours: torch.Tensor, prefix_lens: torch.Tensor) -> torch.Tensor:
    from sglang.srt.layers.attention.ddtree_sm120.verify_mode import ulp_kernel

    ulp_kernel.add_rows(totals, served, ours, prefix_lens)
    return totals


def mask_bytes(out: torch.Tensor, **arguments: torch.Tensor) -> torch.Tensor:
    from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mask_bytes import write_mask_bytes

    write_mask_bytes(out, **arguments)
    return out

# SPDX-License-Identifier: Apache-2.0
"""Move KV rows inside the pool after a tree was accepted."""

from __future__ import annotations

import ctypes

import torch


def _rows_at(address: int, num_rows: int, row_bytes: int) -> torch.Tensor:
    """View ``num_rows * row_bytes`` bytes at ``address`` as ``[num_rows, row_bytes]`` uint8, without a copy."""
    buffer = (ctypes.c_uint8 * (num_rows * row_bytes)).from_address(address)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(num_rows, row_bytes)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor,
    strides: torch.Tensor,
    tgt_loc: torch.Tensor,
    src_loc: torch.Tensor,
) -> None:
    """Copy row ``src_loc[i]`` to row ``tgt_loc[i]`` in every KV buffer.

    All sources are read before the first write, so overlapping lists (a window compacted to its own front) are safe.

    Args:
        data_ptrs: ``[L]`` 64-bit addresses of row 0 of each buffer.
        strides: ``[L]`` row size in bytes; rows are dense.
        tgt_loc, src_loc: ``[M]`` integer row numbers; targets are distinct.
    """
    if src_loc.numel() == 0 or torch.equal(src_loc, tgt_loc):
        return
    source, target = src_loc.long(), tgt_loc.long()
    num_rows = int(torch.maximum(source.max(), target.max())) + 1
    for address, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = _rows_at(address, num_rows, row_bytes)
        rows[target] = rows[source]

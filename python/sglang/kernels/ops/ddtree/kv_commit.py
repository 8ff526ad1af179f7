# SPDX-License-Identifier: Apache-2.0
"""Moves the KV rows of an accepted path to the front of its verify window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sglang.kernels.ops.ddtree.native import native_op


@dataclass(frozen=True)
class KVRows:
    """The row-addressed KV buffers of a model, all layers together.

    Attributes:
        buffers: tensors [slots, ...], contiguous past the first dimension; a
            row is what one token owns in one buffer.
        addresses: int64 [len(buffers)] on the buffers' device, data pointers.
        row_bytes: int64 [len(buffers)] on the buffers' device, bytes a row.
    """

    buffers: tuple[torch.Tensor, ...]
    addresses: torch.Tensor
    row_bytes: torch.Tensor

    @classmethod
    def of(cls, buffers: Sequence[torch.Tensor]) -> KVRows:
        """Describe ``buffers``; they must outlive the result and not move.

        Raises:
            ValueError: no buffer, or one whose rows are not dense.
        """
        if not buffers:
            raise ValueError("kv_commit: the KV pool has no buffer.")
        for buffer in buffers:
            if not buffer.is_contiguous():
                raise ValueError(
                    "kv_commit: KV rows must be dense, got a buffer of shape "
                    f"{tuple(buffer.shape)} with strides {buffer.stride()}."
                )
        device = buffers[0].device
        sizes = [buffer[0].numel() * buffer.element_size() for buffer in buffers]
        return cls(
            buffers=tuple(buffers),
            addresses=torch.tensor(
                [buffer.data_ptr() for buffer in buffers],
                dtype=torch.int64,
                device=device,
            ),
            row_bytes=torch.tensor(sizes, dtype=torch.int64, device=device),
        )


def kv_commit(
    rows: KVRows,
    slots: torch.Tensor,
    nodes: torch.Tensor,
    commit_lens: torch.Tensor,
) -> None:
    """Copy row ``slots[b, nodes[b, j]]`` to row ``slots[b, j]`` of every buffer.

    For j in [1, commit_lens[b]); the root is already in place. Sources and
    targets overlap: all sources are read as they were before the call. Rows
    are addressed one by one, so the page size does not matter.

    Args:
        rows: the pool.
        slots: int64 [B, N], pool rows of the window, distinct.
        nodes: int32 [B, C], strictly increasing along a path.
        commit_lens: int32 [B], at most C.
    """
    if slots.ndim != 2 or slots.dtype != torch.int64:
        raise ValueError(
            f"kv_commit: slots must be int64 [B, N], got {slots.dtype} "
            f"{tuple(slots.shape)}."
        )
    if nodes.shape[0] != slots.shape[0] or commit_lens.shape[0] != slots.shape[0]:
        raise ValueError(
            f"kv_commit: batch sizes differ: slots {slots.shape[0]}, nodes "
            f"{nodes.shape[0]}, commit_lens {commit_lens.shape[0]}."
        )
    if slots.shape[0] == 0:
        return
    op = native_op("kv_commit")
    if op is None:
        kv_commit_reference(rows, slots, nodes, commit_lens)
        return
    op(rows.addresses, rows.row_bytes, slots, nodes, commit_lens)


def kv_commit_reference(
    rows: KVRows,
    slots: torch.Tensor,
    nodes: torch.Tensor,
    commit_lens: torch.Tensor,
) -> None:
    """:func:`kv_commit` in torch, without a host synchronisation."""
    columns = nodes.shape[1]
    steps = torch.arange(columns, device=slots.device)
    moved = steps < commit_lens.unsqueeze(1)
    # A step past the path copies the root's row onto itself.
    target_columns = torch.where(moved, steps, 0)
    target = slots.gather(1, target_columns).reshape(-1)
    source = slots.gather(1, torch.where(moved, nodes.long(), 0)).reshape(-1)
    for buffer in rows.buffers:
        buffer[target] = buffer[source]

# SPDX-License-Identifier: Apache-2.0
"""Moves the KV rows of accepted paths to the front of their verify windows, all layers in one launch.

B requests, C columns, S >= C slots a window, L buffers.

| argument | shape | dtype | note |
|---|---|---|---|
| addresses | [L] | int64 | base pointers of the buffers, on the device of `slots` |
| row_bytes | [L] | int64 | bytes of a row of each buffer; rows are dense |
| slots | [B, S] | int64 | pool rows of the window, all distinct; the row stride is free |
| path_nodes | [B, C] | int32 | a path, root first, strictly increasing |
| commit_lens | [B] | int32 | nodes on the path, at most C |

Row slots[b, path_nodes[b, j]] goes to row slots[b, j] for j in [1, commit_lens[b]); sources and targets may overlap, and all
sources are read as they were before the call. Rows are addressed singly, so any page size will do.

1 <= C <= 64. The operator allocates nothing and does not synchronise; it may be captured in a CUDA graph. The buffers
behind `addresses` must live until the work is done.

Errors: ValueError naming the argument, for shapes, dtypes, devices and strides. Slots and path entries are not checked.
"""

from __future__ import annotations

import torch

from sgl_kernel_ddtree import _load


def kv_commit(
    addresses: torch.Tensor,
    row_bytes: torch.Tensor,
    slots: torch.Tensor,
    path_nodes: torch.Tensor,
    commit_lens: torch.Tensor,
) -> None:
    """Moves the rows; see the module's docstring for the contract."""
    _load.load(slots.device).kv_commit(addresses, row_bytes, slots, path_nodes, commit_lens)

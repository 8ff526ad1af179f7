# SPDX-License-Identifier: Apache-2.0
"""The tree mask in the layout of backends that take one byte a (node, key) pair."""

from __future__ import annotations

import torch
from sglang.kernels.ops.ddtree.tree_build import DraftTree, unpack_mask
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.speculative.eagle_utils import TreeMaskMode


def write_dense_mask(
    tree: DraftTree,
    prefix_lens: torch.Tensor,
    out: torch.Tensor,
    mode: TreeMaskMode,
) -> None:
    """Write each request's mask into ``out``; other bytes become 1.

    FULL_MASK rows hold one byte a key, the prefix first, which every node sees.
    Most readers skip those bytes, but not the kernel that triton takes for
    deterministic inference. Offsets are computed on the device from
    ``prefix_lens``.

    Args:
        out: flat, at least the size of the layout.
        mode: FULL_MASK or QLEN_ONLY.
    """
    num_nodes = tree.tokens.shape[1]
    device = out.device
    node = torch.arange(num_nodes, device=device)
    if mode == TreeMaskMode.FULL_MASK:
        row = prefix_lens + num_nodes
    elif mode == TreeMaskMode.QLEN_ONLY:
        row = torch.full_like(prefix_lens, num_nodes)
    else:
        raise ValueError(f"write_dense_mask: no byte layout for {mode}.")
    first = (row * num_nodes).cumsum(0) - row * num_nodes
    last_cells = first[:, None] + (node + 1) * row[:, None] - num_nodes
    cells = last_cells.unsqueeze(-1) + node
    sees = unpack_mask(tree.mask_words, num_nodes)
    out.fill_(1)
    out[cells.reshape(-1)] = sees.reshape(-1).to(out.dtype)


def dense_mask_for(
    backend: AttentionBackend,
    tree: DraftTree,
    prefix_lens: torch.Tensor,
    total_keys: int,
) -> torch.Tensor:
    """The mask of one verify on ``backend``, in the backend's own buffer if it has one.

    Args:
        total_keys: upper bound on the host of all requests' keys, nodes included.
    """
    batch, num_nodes = tree.tokens.shape
    verify_mask = backend.verify_mask
    size = total_keys * num_nodes
    buffer: torch.Tensor | None = None
    mode = TreeMaskMode.FULL_MASK
    if verify_mask is not None and verify_mask.fits(batch):
        mode, buffer = verify_mask.mode, verify_mask.buffer
        size = min(size, buffer.numel())
    if buffer is None:
        buffer = torch.empty(size, dtype=torch.bool, device=tree.tokens.device)
    mask = buffer[:size]
    write_dense_mask(tree, prefix_lens, mask, mode)
    return mask

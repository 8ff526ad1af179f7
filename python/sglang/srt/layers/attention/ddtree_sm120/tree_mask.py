# SPDX-License-Identifier: Apache-2.0
"""Read the tree mask of a verify batch, whichever of the three layouts it comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.kernels.ops.ddtree.tree_build import unpack_mask
from sglang.srt.speculative.eagle_utils import TreeMaskMode, default_tree_mask_mode

if TYPE_CHECKING:
    from sglang.srt.speculative.spec_info import SpecInput

_WORD_BITS = 32


def read_tree_mask(spec_info: SpecInput, prefix_lens: torch.Tensor) -> torch.Tensor | None:
    """The node-to-node part of a verify batch's mask.

    Args:
        spec_info: see ``ddtree_sm120_backend.py``.
        prefix_lens: ``[B]`` integer, committed tokens of each request.

    Returns:
        ``[B, N, N]`` bool, ``[b, i, j]``: node ``i`` sees node ``j``; or None for a chain.

    Raises:
        ValueError: the mask does not have the size of its layout, hides committed tokens, or leaves a node blind to
            itself.
        NotImplementedError: the declared layout is none of the three.
    """
    num_nodes = int(spec_info.draft_token_num)
    words = getattr(spec_info, "mask_words", None)
    custom_mask = spec_info.custom_mask
    if words is not None:
        tree = _from_words(words, prefix_lens.numel(), num_nodes)
    elif custom_mask is not None:
        mode = getattr(spec_info, "tree_mask_mode", None)
        mode = default_tree_mask_mode() if mode is None else TreeMaskMode(mode)
        tree = _from_bytes(custom_mask.view(-1).bool(), mode, prefix_lens, num_nodes)
    else:
        return None
    if not tree.diagonal(dim1=1, dim2=2).all():
        raise ValueError("tree mask: a node does not see itself")
    return tree


def _from_words(words: torch.Tensor, batch: int, num_nodes: int) -> torch.Tensor:
    expected = (num_nodes, -(-num_nodes // _WORD_BITS))
    if words.dtype not in (torch.int32, torch.uint32) or words.dim() != 3 or tuple(words.shape[1:]) != expected:
        raise ValueError(
            f"mask_words must be int32 or uint32 of shape [batch, {expected[0]}, {expected[1]}], "
            f"got {words.dtype} {tuple(words.shape)}"
        )
    if words.shape[0] < batch:
        raise ValueError(f"mask_words holds {words.shape[0]} requests, the batch has {batch}")
    return unpack_mask(words[:batch].view(torch.int32), num_nodes)


def _from_bytes(mask: torch.Tensor, mode: TreeMaskMode, prefix_lens: torch.Tensor, num_nodes: int) -> torch.Tensor:
    batch = prefix_lens.numel()
    if mode == TreeMaskMode.QLEN_ONLY:
        row_width = torch.full_like(prefix_lens, num_nodes, dtype=torch.int64)
    elif mode == TreeMaskMode.FULL_MASK:
        row_width = prefix_lens.long() + num_nodes
    else:
        raise NotImplementedError(f"tree mask layout {mode.name} is not read by ddtree_sm120; pass mask_words instead")
    expected = int(row_width.sum()) * num_nodes
    if mask.numel() != expected:
        raise ValueError(
            f"custom_mask has {mask.numel()} entries; {mode.name} of {batch} requests with {num_nodes} nodes has "
            f"{expected}"
        )
    node = torch.arange(num_nodes)
    first_row = (row_width * num_nodes).cumsum(0) - row_width * num_nodes
    row_end = first_row[:, None] + (node + 1) * row_width[:, None]
    tree = mask[row_end[:, :, None] - num_nodes + node]
    # Every cell outside the tree part belongs to the prefix: all of it is seen when the totals differ by its size.
    prefix_cells = expected - tree.numel()
    if int(mask.sum()) - int(tree.sum()) != prefix_cells:
        raise ValueError("custom_mask hides committed tokens; ddtree_sm120 reads all of the prefix")
    return tree

# SPDX-License-Identifier: Apache-2.0
"""Tree links from an ancestor mask, for trees of any shape."""

from __future__ import annotations

import torch

from sgl_kernel.tree import write_links


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Derive positions and links of each tree from its mask.

    Args:
        tree_mask: flat ``[B * N * N]`` bool, row ``i`` marking the ancestors of node ``i``; only entries with a smaller node
            number than the row's count, and the largest of them is the parent.
        verified_seq_len: ``[B]`` integer, committed tokens.
        positions: ``[B * N]`` int64, written with committed tokens + number of ancestors.
        retrive_index, retrive_next_token, retrive_next_sibling: ``[B * N]`` or ``[B, N]`` int64, written in place.
        batch_size, draft_token_num: ``B``, ``N``.
    """
    if batch_size == 0:
        return
    shape = batch_size, draft_token_num
    node = torch.arange(draft_token_num)
    ancestors = tree_mask.view(*shape, draft_token_num).bool() & (node < node[:, None])
    parent = torch.where(ancestors, node, -1).amax(-1)
    positions.view(shape).copy_(ancestors.sum(-1) + verified_seq_len.long()[:, None])
    write_links(ancestors, parent, retrive_index, retrive_next_token, retrive_next_sibling)

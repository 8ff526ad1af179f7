# SPDX-License-Identifier: Apache-2.0
"""Attention of a draft tree's nodes in float64, by dense products: no code of either kernel is used.

All shapes are fixed by the arguments' own, and nothing is read back, so this may be captured in a CUDA graph.
"""

from __future__ import annotations

import torch


def read_words(words: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """``[B, N, N]`` bool, node ``i`` sees node ``j``.

    Args:
        words: ``[B, N, ceil(N / 32)]`` int32, bit ``j % 32`` of word ``j // 32``.
        num_nodes: ``N``.
    """
    node = torch.arange(num_nodes, device=words.device)
    return (words.index_select(2, node // 32) >> (node % 32).to(words.dtype)) & 1 != 0


def tree_attention(
    q: torch.Tensor,
    rows: torch.Tensor,
    slots: torch.Tensor,
    prefix_lens: torch.Tensor,
    tree: torch.Tensor,
    scale: float,
    latent_dim: int,
) -> torch.Tensor:
    """``[B, N, H, latent_dim]`` float64. Requests with a negative prefix, or with more keys than ``S``, have no
    meaningful output.

    Args:
        q: ``[B, N, H, D]``.
        rows: ``[slots, D]``, the pool's keys, whose first ``latent_dim`` columns are the values.
        slots: ``[B, S]`` int64, where key ``s`` of a request lies; anything behind its last one.
        prefix_lens: ``[B]`` int64, committed keys ``L``; the window's are ``L`` to ``L + N - 1``.
        tree: ``[B, N, N]`` bool, node ``i`` sees node ``j``. All nodes see all committed keys.
        scale: on the scores.
    """
    batch, nodes, heads, dim = q.shape
    length = slots.shape[1]
    node = torch.arange(length, device=slots.device) - prefix_lens[:, None]  # of the window; negative when committed
    in_window = (node >= 0) & (node < nodes)
    owned = (node < nodes) & (prefix_lens >= 0)[:, None]
    # What is not a request's own may be no slot at all, or a row of NaN, which no weight of zero would take away.
    keys = rows[slots.masked_fill(~owned, 0)].double().masked_fill(~owned[..., None], 0)
    sees = tree.gather(2, node.clamp(0, nodes - 1)[:, None].expand(batch, nodes, length))
    seen = (owned & ~in_window)[:, None] | (in_window[:, None] & sees)
    scores = (q.double().reshape(batch, nodes * heads, dim) @ keys.transpose(1, 2)) * scale
    scores = scores.view(batch, nodes, heads, length).masked_fill(~seen[:, :, None], -torch.inf)
    weights = scores.softmax(-1).view(batch, nodes * heads, length)
    return (weights @ keys[..., :latent_dim]).view(batch, nodes, heads, latent_dim)

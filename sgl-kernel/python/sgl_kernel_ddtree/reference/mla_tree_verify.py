# SPDX-License-Identifier: Apache-2.0
"""Torch definition of `mla_tree_verify`, in float64 or float32, one request at a time."""

from __future__ import annotations

import math

import torch


def unpack_mask(mask_words: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """mask_words [..., num_nodes, ceil(num_nodes / 32)] int32 -> bool [..., num_nodes, num_nodes]; [i, j]: i sees j."""
    node = torch.arange(num_nodes, device=mask_words.device)
    words = mask_words.long() & 0xFFFFFFFF
    return ((words[..., node // 32] >> (node % 32)) & 1).bool()


def pack_mask(visible: torch.Tensor) -> torch.Tensor:
    """bool [..., N, N] -> int32 words [..., N, ceil(N / 32)], the inverse of `unpack_mask`."""
    num_nodes = visible.shape[-1]
    words = (num_nodes + 31) // 32
    padded = torch.nn.functional.pad(visible.long(), (0, words * 32 - num_nodes))
    bits = padded.unflatten(-1, (words, 32)) << torch.arange(32, device=visible.device)
    total = bits.sum(-1)
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


def slots_of(page_table: torch.Tensor, request: int, num_tokens: int, page_size: int) -> torch.Tensor:
    """Pool rows of tokens 0 .. num_tokens - 1 of one request, int64 [num_tokens]."""
    token = torch.arange(num_tokens, device=page_table.device)
    return page_table[request, token // page_size].long() * page_size + token % page_size


def mla_tree_verify_reference(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    kv_pool: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    *,
    num_nodes: int,
    page_size: int,
    sm_scale: float,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B*N, H, 512] and log-sum-exp [B*N, H], both in `dtype`, from upcast inputs; arguments as in the operator.

    With K the rows of one request (prefix, then window) and V their first 512 columns:
    out = softmax(sm_scale * q K^T, hidden keys at -inf) V. A row that sees no key gives 0 and -inf.
    """
    rows, heads, latent = q_nope.shape
    out = torch.zeros(rows, heads, latent, dtype=dtype, device=q_nope.device)
    lse = torch.full((rows, heads), -math.inf, dtype=dtype, device=q_nope.device)
    kv_pool = kv_pool.reshape(kv_pool.shape[0], kv_pool.shape[-1]) if kv_pool.ndim == 3 else kv_pool
    tree = unpack_mask(mask_words, num_nodes)
    for request, prefix in enumerate(prefix_lens.tolist()):
        if prefix < 0:
            continue
        window = slice(request * num_nodes, (request + 1) * num_nodes)
        q = torch.cat([q_nope[window], q_rope[window]], -1).to(dtype)
        keys = kv_pool[slots_of(page_table, request, prefix + num_nodes, page_size)].to(dtype)
        scores = torch.matmul(q, keys.T) * sm_scale
        # The prefix is always visible, so only the window's columns are masked.
        scores[..., prefix:].masked_fill_(~tree[request][:, None, :], -math.inf)
        sums = torch.logsumexp(scores, -1, keepdim=True)
        weights = torch.exp(scores - torch.where(sums == -math.inf, 0.0, sums))
        out[window] = torch.matmul(weights, keys[:, :latent])
        lse[window] = sums.squeeze(-1)
    return out, lse

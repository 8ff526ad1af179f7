# SPDX-License-Identifier: Apache-2.0
"""Torch definition of `gqa_tree_verify`, in float64 or float32, one request at a time."""

from __future__ import annotations

import math

import torch

from sgl_kernel_ddtree.reference.mla_tree_verify import slots_of, unpack_mask


def visible_keys(prefix: int, num_nodes: int, tree: torch.Tensor | None, window: int, device: torch.device) -> torch.Tensor:
    """bool [num_nodes, prefix + num_nodes]: which keys of one request its nodes see.

    Args:
        prefix: committed tokens.
        tree: bool [num_nodes, num_nodes], [i, j]: i sees j; None: all of the window.
        window: how far back in positions, itself not counted; negative: no limit.
    """
    seen = torch.ones(num_nodes, prefix + num_nodes, dtype=torch.bool, device=device)
    if tree is not None:
        seen[:, prefix:] = tree
    if window >= 0:
        depth = torch.arange(num_nodes, device=device) if tree is None else (tree.sum(-1) - 1).clamp_min(0)
        positions = torch.cat([torch.arange(prefix, device=device), prefix + depth])
        seen &= positions >= prefix + depth[:, None] - window
    return seen


def gqa_tree_verify_reference(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor | None,
    *,
    num_nodes: int,
    page_size: int,
    sm_scale: float,
    window: int = -1,
    logit_cap: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B*N, Hq, D] and log-sum-exp [B*N, Hq], both in `dtype`, from upcast inputs; arguments as in the operator.

    With K and V the rows of one request and KV head: out = softmax(cap(sm_scale * q K^T), hidden keys at -inf) V, a query
    head h using KV head h // (Hq / Hkv). A row that sees no key gives 0 and -inf.
    """
    rows, heads, dim = q.shape
    kv_heads = k_pool.shape[1]
    out = torch.zeros(rows, heads, dim, dtype=dtype, device=q.device)
    lse = torch.full((rows, heads), -math.inf, dtype=dtype, device=q.device)
    trees = None if mask_words is None else unpack_mask(mask_words, num_nodes)
    for request, prefix in enumerate(prefix_lens.tolist()):
        if prefix < 0:
            continue
        nodes = slice(request * num_nodes, (request + 1) * num_nodes)
        # Tokens before the root's reach are not read: their rows may be anyone's.
        first = max(0, prefix - window) if window >= 0 else 0
        seen = visible_keys(
            prefix,
            num_nodes,
            None if trees is None else trees[request],
            window,
            q.device,
        )[:, first:]
        slots = slots_of(page_table, request, prefix + num_nodes, page_size)[first:]
        keys, values = (pool[slots].to(dtype).transpose(0, 1) for pool in (k_pool, v_pool))
        queries = q[nodes].to(dtype).unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)  # [Hkv, group, N, D]
        scores = torch.matmul(queries, (keys * k_scale).transpose(1, 2)[:, None]) * sm_scale
        if logit_cap > 0:
            scores = logit_cap * torch.tanh(scores / logit_cap)
        scores = scores.masked_fill(~seen, -math.inf)
        sums = torch.logsumexp(scores, -1, keepdim=True)
        weights = torch.exp(scores - torch.where(sums == -math.inf, 0.0, sums))
        out[nodes] = torch.matmul(weights, (values * v_scale)[:, None]).permute(2, 0, 1, 3).flatten(1, 2)
        lse[nodes] = sums.squeeze(-1).permute(2, 0, 1).flatten(1, 2)
    return out, lse

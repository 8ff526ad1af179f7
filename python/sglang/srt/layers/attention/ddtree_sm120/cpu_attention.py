# SPDX-License-Identifier: Apache-2.0
"""Paged attention of one group of requests in torch, accumulated in float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sglang.srt.layers.attention.ddtree_sm120.plan import RequestGroup, Visibility

# Scores of one tile of queries; larger ones fall out of the cache and long prefills out of memory.
_TILE_SCORES = 4 << 20


@dataclass(frozen=True)
class LayerParams:
    """What a layer asks of attention.

    Attributes:
        scaling: factor on the scores.
        visibility: causal (along the tree) or bidirectional.
        window: how far back a query sees, itself not counted; negative for no limit.
        logit_cap: scores become ``cap * tanh(score / cap)``; 0 for none.
        sinks: ``[Hq]`` scores of a key without a value that every query sees, or None.
    """

    scaling: float
    visibility: Visibility = Visibility.CAUSAL
    window: int = -1
    logit_cap: float = 0.0
    sinks: torch.Tensor | None = None


def attend(
    group: RequestGroup,
    q: torch.Tensor,
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor | None,
    out: torch.Tensor,
    params: LayerParams,
) -> None:
    """Attention of the group's queries over their own KV rows, which must already hold the new tokens.

    Args:
        group: requests, ``G`` of them, ``n`` queries each.
        q: ``[T, Hq, D]`` float32, bfloat16 or float16.
        key_buffer: ``[slots, Hkv, D]``.
        value_buffer: ``[slots, Hkv, Dv]``, or None for MLA: the first ``Dv`` columns of the key rows are the values.
        out: ``[T, Hq, Dv]``, the group's rows are written. A query that sees nothing gets zeros.
        params: of the layer.
    """
    num_requests, num_queries = group.rows.shape
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, value_dim = key_buffer.shape[1], out.shape[-1]
    heads_per_kv = num_heads // num_kv_heads

    # [G, Hkv, S, D]: one matrix a request and KV head; query heads of one KV head become rows of the other operand.
    keys = key_buffer[group.slots].transpose(1, 2).float()
    values = keys[..., :value_dim] if value_buffer is None else value_buffer[group.slots].transpose(1, 2).float()
    transposed_keys = keys.transpose(2, 3)
    queries = q[group.rows].float().mul_(params.scaling) if q.dtype != torch.float32 else q[group.rows] * params.scaling
    queries = queries.view(num_requests, num_queries, num_kv_heads, heads_per_kv, head_dim).permute(0, 2, 1, 3, 4)
    sinks = None if params.sinks is None else params.sinks.float().view(1, num_kv_heads, 1, heads_per_kv, 1)

    tile = max(1, _TILE_SCORES // (num_requests * num_heads * keys.shape[2]))
    for start in range(0, num_queries, tile):
        columns = slice(start, min(start + tile, num_queries))
        part = queries[:, :, columns]
        scores = torch.matmul(part.flatten(2, 3), transposed_keys).view(*part.shape[:4], -1)
        if params.logit_cap > 0:
            scores = scores.div_(params.logit_cap).tanh_().mul_(params.logit_cap)
        seen = group.visible(params.visibility, params.window, columns)
        weights, norm = _softmax_terms(scores.masked_fill_(~seen[:, None, :, None], -torch.inf), sinks)
        result = torch.matmul(weights.flatten(2, 3), values).view(*part.shape[:4], value_dim).div_(norm)
        out[group.rows[:, columns]] = result.permute(0, 2, 1, 3, 4).flatten(2, 3).to(out.dtype)


def _softmax_terms(scores: torch.Tensor, sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Numerators (in place of ``scores``) and denominator of the softmax over the last axis, safe for rows of -inf."""
    peak = scores.amax(-1, keepdim=True)
    if sinks is not None:
        peak = torch.maximum(peak, sinks)
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    weights = scores.sub_(peak).exp_()
    norm = weights.sum(-1, keepdim=True)
    if sinks is not None:
        norm = norm + (sinks - peak).exp()
    return weights, norm.clamp_min(torch.finfo(torch.float32).tiny)

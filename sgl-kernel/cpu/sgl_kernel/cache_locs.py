# SPDX-License-Identifier: Apache-2.0
"""KV slot bookkeeping between ``req_to_token`` rows and packed slot lists.

Shapes used below: ``B`` requests, ``R`` rows and ``W`` columns of ``req_to_token`` (int32), request ``b`` owning the columns
``[start[b], end[b])`` of row ``req_pool_indices[b]``. Packed lists hold request 0's slots first, then request 1's.
"""

from __future__ import annotations

import torch


def _ragged_coordinates(
    req_pool_indices: torch.Tensor, start: torch.Tensor, end: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column in ``req_to_token`` of every packed element, both ``[sum(end - start)]`` int64."""
    start = start.long()
    lengths = (end.long() - start).clamp_min(0)
    rows = req_pool_indices.long().repeat_interleave(lengths)
    first_packed = lengths.cumsum(0) - lengths
    columns = torch.arange(rows.numel()) + (start - first_packed).repeat_interleave(lengths)
    return rows, columns


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Pack the slots of columns ``[start_offset, end_offset)`` of each request into ``out_cache_loc``.

    Args:
        req_pool_indices: ``[B]`` integer.
        req_to_token: ``[R, W]`` int32.
        start_offset, end_offset: ``[B]`` integer, ``0 <= start <= end <= W``.
        out_cache_loc: ``[>= sum(end - start)]`` integer, written in place; what lies behind stays.
        pool_len: ``W``; part of the signature, not needed here.
    """
    rows, columns = _ragged_coordinates(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: rows.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Pack the ``topk * speculative_num_steps`` slots behind each request's sequence into ``out_cache_loc``.

    Args:
        req_pool_indices, seq_lens: ``[B]`` integer.
        req_to_token: ``[R, W]`` int32, ``seq_lens + topk * speculative_num_steps <= W``.
        out_cache_loc: ``[>= B * topk * speculative_num_steps]`` integer, written in place.
        pool_len: ``W``; part of the signature, not needed here.
    """
    width = topk * speculative_num_steps
    columns = seq_lens.long()[:, None] + torch.arange(width)
    slots = req_to_token[req_pool_indices.long()[:, None], columns]
    out_cache_loc.view(-1)[: slots.numel()] = slots.reshape(-1).to(out_cache_loc.dtype)


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write packed new slots into columns ``[start_offset, end_offset)`` of each request's row.

    Args:
        req_pool_indices, start_offset, end_offset: ``[B]`` integer.
        req_to_token: ``[R, W]`` int32, written in place.
        out_cache_loc: ``[>= sum(end - start)]`` integer.
        pool_len: ``W``; part of the signature, not needed here.

    Raises:
        IndexError: a range ends behind the row. (The native kernel would write into the next request's row.)
    """
    rows, columns = _ragged_coordinates(req_pool_indices, start_offset, end_offset)
    req_to_token[rows, columns] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)

# SPDX-License-Identifier: Apache-2.0
"""Small gathers and shifts between two speculative steps."""

from __future__ import annotations

import torch


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
) -> None:
    """Take the last accepted token of each request.

    Args:
        accept_tokens: ``[B * accept_stride]`` integer, each request's accepted tokens at the front of its row.
        accept_lens: ``[B]`` integer, at least 1 (the bonus token counts).
        bonus_tokens: ``[>= B]`` integer, written in place.
        accept_stride: row width of ``accept_tokens``.
    """
    num_requests = accept_lens.numel()
    last = torch.arange(num_requests) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:num_requests] = accept_tokens.view(-1)[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor,
    out_cache_loc: torch.Tensor,
    accept_out_cache_loc: torch.Tensor,
) -> None:
    """Pack the KV slots of the accepted tokens.

    Args:
        accept_index: integer, any shape; -1 marks "nothing accepted here", the rest index ``out_cache_loc``.
        out_cache_loc: ``[T]`` integer.
        accept_out_cache_loc: ``[>= number of accepted]`` integer, written in place; what lies behind stays.
    """
    flat = accept_index.view(-1)
    accepted = flat[flat > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's tokens left by one and put its next token at the end.

    Args:
        input_ids: ``[T]`` integer, written in place; request ``b`` owns
            ``[extend_start_loc[b], extend_start_loc[b] + extend_seq_lens[b])``.
        extend_start_loc, extend_seq_lens: ``[B]`` integer; a length of 0 leaves the request alone.
        topk_index: ``[B]`` or ``[B, 1]`` integer, the next token of each request.
        select_index: ``[B]`` integer, where to put it instead of at the end.
    """
    start, length = extend_start_loc.long(), extend_seq_lens.long()
    present = length > 0
    moved = (length - 1).clamp_min(0)
    first_packed = moved.cumsum(0) - moved
    total = int(moved.sum())
    target = torch.arange(total) + (start - first_packed).repeat_interleave(moved)
    input_ids[target] = input_ids[target + 1]
    last = start + length - 1 if select_index is None else select_index.long()
    tokens = topk_index.view(-1)[: length.numel()].to(input_ids.dtype)
    input_ids[last[present]] = tokens[present]

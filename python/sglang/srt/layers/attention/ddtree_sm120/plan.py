# SPDX-License-Identifier: Apache-2.0
"""What one forward step attends to: built once a step, read by every layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.ddtree_sm120.tree_mask import read_tree_mask
from sglang.srt.model_executor.forward_batch_info import ForwardMode

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

# Masks up to this size stay in memory for the next layer; those of a long prefill are cheaper to compute than to keep.
_CACHED_MASK_BYTES = 32 << 20


class Visibility(Enum):
    """Which keys a query sees, sliding window aside."""

    CAUSAL = "causal"  # earlier positions and itself; along the tree where there is one
    BIDIRECTIONAL = "bidirectional"  # all keys of its request


@dataclass
class RequestGroup:
    """Requests with equally many queries and similar KV length, computed as one batch.

    Attributes:
        rows: ``[G, n]`` int64, rows of the step's query tensor.
        slots: ``[G, S]`` int64, KV slots; behind a request's end its last slot repeats, so no foreign row is ever read.
        kv_lens: ``[G]`` int64, keys of each request, the new ones included.
        query_positions: ``[G, n]`` int64; key ``s`` of the prefix has position ``s``.
        tree: ``[G, n, n]`` bool, or None for a chain.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    kv_lens: torch.Tensor
    query_positions: torch.Tensor
    tree: torch.Tensor | None
    _masks: dict = field(default_factory=dict, repr=False)

    def visible(self, visibility: Visibility, window: int, queries: slice) -> torch.Tensor:
        """``[G, len(queries), S]`` bool: which keys the given queries see.

        Args:
            visibility: of the layer.
            window: how far back a query sees, itself not counted; negative for no limit.
            queries: range of query columns.
        """
        key = visibility, window, queries.start, queries.stop
        mask = self._masks.get(key)
        if mask is None:
            mask = self._compute_visible(visibility, window, queries)
            if mask.numel() <= _CACHED_MASK_BYTES:
                self._masks[key] = mask
        return mask

    def _compute_visible(self, visibility: Visibility, window: int, queries: slice) -> torch.Tensor:
        column = torch.arange(self.slots.shape[1])
        exists = (column < self.kv_lens[:, None])[:, None, :]
        position = self.query_positions[:, queries, None]
        if visibility is Visibility.BIDIRECTIONAL:
            seen = exists.expand(-1, position.shape[1], -1)
        elif self.tree is None:
            seen = (column <= position) & exists
        else:
            first_node = self.kv_lens - self.tree.shape[-1]
            seen = (column < first_node[:, None])[:, None, :].repeat(1, position.shape[1], 1)
            node_columns = first_node[:, None] + torch.arange(self.tree.shape[-1])
            seen.scatter_(2, node_columns[:, None, :].expand(-1, position.shape[1], -1), self.tree[:, queries])
        if window >= 0:
            seen = seen & (self._key_positions() >= position - window)
        return seen

    def _key_positions(self) -> torch.Tensor:
        """``[G, 1, S]``: the column itself, except that a tree node stands at its depth."""
        positions = torch.arange(self.slots.shape[1]).expand(self.slots.shape).clone()
        if self.tree is not None:
            first_node = self.kv_lens - self.tree.shape[-1]
            node_columns = first_node[:, None] + torch.arange(self.tree.shape[-1])
            positions.scatter_(1, node_columns, self.query_positions)
        return positions[:, None, :]


@dataclass
class AttentionPlan:
    """All requests of one step.

    Attributes:
        groups: cover every request that has queries.
        num_tokens: query rows of the step.
        has_tree: whether a tree mask rules this step.
    """

    groups: list[RequestGroup]
    num_tokens: int
    has_tree: bool

    def __iter__(self) -> Iterator[RequestGroup]:
        return iter(self.groups)


def build_plan(forward_batch: ForwardBatch, req_to_token: torch.Tensor) -> AttentionPlan:
    """Read lengths, slots and mask of a forward batch.

    Args:
        forward_batch: in mode DECODE, EXTEND, MIXED, TARGET_VERIFY or IDLE.
        req_to_token: ``[R, W]`` int32 KV slot of each token of each request.

    Raises:
        NotImplementedError: for any other mode.
        ValueError: from :func:`read_tree_mask`.
    """
    mode = forward_batch.forward_mode
    seq_lens = forward_batch.seq_lens.long()
    tree = None
    if mode.is_idle():
        return AttentionPlan([], 0, False)
    if mode.is_decode():
        prefix_lens, query_lens = seq_lens - 1, torch.ones_like(seq_lens)
    elif mode.is_target_verify():
        prefix_lens = seq_lens
        query_lens = torch.full_like(seq_lens, int(forward_batch.spec_info.draft_token_num))
        tree = read_tree_mask(forward_batch.spec_info, prefix_lens)
    elif mode in (ForwardMode.EXTEND, ForwardMode.MIXED):
        prefix_lens, query_lens = forward_batch.extend_prefix_lens.long(), forward_batch.extend_seq_lens.long()
    else:
        raise NotImplementedError(f"ddtree_sm120 has no CPU implementation of forward mode {mode.name}")

    first_row = query_lens.cumsum(0) - query_lens
    groups = [
        _build_group(
            first_row[members],
            prefix_lens[members],
            num_queries,
            req_to_token[forward_batch.req_pool_indices[members]],
            None if tree is None else tree[members],
        )
        for num_queries, members in _group_requests(query_lens.tolist(), prefix_lens.tolist())
    ]
    return AttentionPlan(groups, int(query_lens.sum()), tree is not None)


def _group_requests(query_lens: list[int], prefix_lens: list[int]) -> list[tuple[int, torch.Tensor]]:
    """Requests with the same query count and, to a factor of two, the same KV length: at most half of it is padding."""
    members: dict[tuple[int, int], list[int]] = {}
    for request, (num_queries, prefix) in enumerate(zip(query_lens, prefix_lens, strict=True)):
        if num_queries > 0:
            members.setdefault((num_queries, (prefix + num_queries).bit_length()), []).append(request)
    return [(num_queries, torch.tensor(requests)) for (num_queries, _), requests in members.items()]


def _build_group(
    first_row: torch.Tensor,
    prefix_lens: torch.Tensor,
    num_queries: int,
    table: torch.Tensor,
    tree: torch.Tensor | None,
) -> RequestGroup:
    query = torch.arange(num_queries)
    kv_lens = prefix_lens + num_queries
    column = torch.minimum(torch.arange(int(kv_lens.max())), kv_lens[:, None] - 1)
    depth = query if tree is None else tree.sum(-1) - 1
    return RequestGroup(
        rows=first_row[:, None] + query,
        slots=table.gather(1, column).long(),
        kv_lens=kv_lens,
        query_positions=prefix_lens[:, None] + depth,
        tree=tree,
    )

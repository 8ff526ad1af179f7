# SPDX-License-Identifier: Apache-2.0
"""Walk of the target's choices down a draft tree.

Notation: B requests, N nodes, C = D + 1 columns, the longest path root included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sglang.kernels.ops.ddtree.native import native_op
from sglang.kernels.ops.ddtree.tree_build import MAX_DEPTH, MAX_NODES, DraftTree


@dataclass
class AcceptedPath:
    """What one verify step commits, in fixed-shape buffers.

    Attributes:
        nodes: int32 [B, C], the path's nodes, root first; -1 beyond it.
        commit_lens: int32 [B], nodes on the path = accepted drafts + 1. It is
            also the number of new tokens: the accepted drafts and the bonus.
        bonus: int64 [B], the target's choice at the last node of the path.
        tokens: int64 [B, C], accepted drafts, then the bonus; 0 beyond it.
        new_seq_lens: int64 [B], prefix length + ``commit_lens``.
    """

    nodes: torch.Tensor
    commit_lens: torch.Tensor
    bonus: torch.Tensor
    tokens: torch.Tensor
    new_seq_lens: torch.Tensor

    @classmethod
    def empty(
        cls, batch_size: int, columns: int, device: torch.device | str
    ) -> AcceptedPath:
        def new(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            nodes=new(batch_size, columns, dtype=torch.int32),
            commit_lens=new(batch_size, dtype=torch.int32),
            bonus=new(batch_size, dtype=torch.int64),
            tokens=new(batch_size, columns, dtype=torch.int64),
            new_seq_lens=new(batch_size, dtype=torch.int64),
        )

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The buffers in the order of the native operator's outputs."""
        return (
            self.nodes,
            self.commit_lens,
            self.bonus,
            self.tokens,
            self.new_seq_lens,
        )

    def rows(self, batch_size: int) -> AcceptedPath:
        """Views of the first ``batch_size`` requests."""
        return AcceptedPath(*(tensor[:batch_size] for tensor in self.tensors()))


def tree_accept(
    tree: DraftTree,
    target_tokens: torch.Tensor,
    prefix_lens: torch.Tensor,
    path: AcceptedPath,
) -> None:
    """Follow the target from the root for as long as it picks a child.

    At each node the target has chosen one token. If a child carries it, the
    walk moves there; otherwise the choice is the bonus and the walk ends. Each
    visited node's choice is used once, so a choice drawn from the target's
    distribution at that node makes the output an exact sample (greedy is the
    special case of the argmax).

    Args:
        tree: as written by ``tree_build``.
        target_tokens: int64 [B, N], the target's choice after each node.
        prefix_lens: int64 [B].
        path: output. C must cover the deepest node of the tree, root included.
    """
    batch, num_nodes = tree.tokens.shape
    columns = path.nodes.shape[1]
    if target_tokens.shape != (batch, num_nodes) or target_tokens.dtype != torch.int64:
        raise ValueError(
            f"tree_accept: target_tokens must be int64 [{batch}, {num_nodes}], "
            f"got {target_tokens.dtype} {tuple(target_tokens.shape)}."
        )
    if not (num_nodes <= MAX_NODES and 1 <= columns <= MAX_DEPTH + 1):
        raise ValueError(
            f"tree_accept: N={num_nodes}, C={columns} exceed N <= {MAX_NODES}, "
            f"1 <= C <= {MAX_DEPTH + 1}."
        )
    if batch == 0:
        return
    op = native_op("tree_accept")
    if op is None:
        tree_accept_reference(tree, target_tokens, prefix_lens, path)
        return
    op(tree.tokens, tree.parents, target_tokens, prefix_lens, *path.tensors())


def tree_accept_reference(
    tree: DraftTree,
    target_tokens: torch.Tensor,
    prefix_lens: torch.Tensor,
    path: AcceptedPath,
) -> None:
    """:func:`tree_accept` in torch, without a host synchronisation."""
    batch, num_nodes = tree.tokens.shape
    columns = path.nodes.shape[1]
    device = tree.tokens.device
    rows = torch.arange(batch, device=device)

    # One column past the last node takes the writes of nodes that do not match.
    parents = tree.parents.long()
    choice = target_tokens.gather(1, parents.clamp(min=0))
    matches = (parents >= 0) & (tree.tokens == choice)
    follow = torch.full((batch, num_nodes + 1), -1, dtype=torch.int64, device=device)
    index = torch.arange(num_nodes, device=device).expand(batch, -1)
    follow.scatter_(1, torch.where(matches, parents, num_nodes), index)
    follow[:, num_nodes] = -1

    path.nodes.fill_(-1)
    path.nodes[:, 0] = 0
    path.tokens.zero_()
    path.commit_lens.fill_(1)
    current = torch.zeros(batch, dtype=torch.int64, device=device)
    alive = torch.ones(batch, dtype=torch.bool, device=device)
    for step in range(1, columns):
        child = follow[rows, current]
        alive = alive & (child >= 0)
        current = torch.where(alive, child, current)
        path.nodes[:, step] = torch.where(alive, current, -1).int()
        path.tokens[:, step - 1] = torch.where(alive, tree.tokens[rows, current], 0)
        path.commit_lens += alive.int()

    path.bonus.copy_(target_tokens[rows, current])
    path.tokens[rows, path.commit_lens.long() - 1] = path.bonus
    torch.add(prefix_lens, path.commit_lens, out=path.new_seq_lens)

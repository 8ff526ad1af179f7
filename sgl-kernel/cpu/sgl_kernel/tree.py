# SPDX-License-Identifier: Apache-2.0
"""Build an EAGLE draft tree and walk it greedily.

Shapes: ``B`` requests, ``N`` tree nodes a request, root (node 0) included. Links are int64 ``[B, N]``: ``retrieve_index`` is the
flat number ``b * N + i`` of node ``i``, ``retrieve_next_token`` its first child, ``retrieve_next_sibling`` the next child of its
parent; -1 where there is none.
"""

from __future__ import annotations

import torch

FULL_MASK, QLEN_ONLY = 0, 1


def _parents(parent_list: torch.Tensor, selected_index: torch.Tensor, topk: int) -> torch.Tensor:
    """``[B, N]`` int64 parent node of each node; the root and nodes whose parent was not selected have -1."""
    selected = selected_index.long()
    step_row = selected // topk
    parent_candidate = parent_list.long().gather(1, step_row) if parent_list.shape[1] else torch.zeros_like(selected)
    # Candidates are distinct, so at most one matches and the sum picks its node number.
    same = selected[:, None, :] == parent_candidate[:, :, None]
    node = torch.arange(1, selected.shape[1] + 1)
    parent = torch.where(same.any(-1), (same * node).sum(-1), -1)
    parent = torch.where(step_row == 0, 0, parent)
    return torch.nn.functional.pad(parent, (1, 0), value=-1)


def _ancestors(parent: torch.Tensor, depth: int) -> torch.Tensor:
    """``[B, N, N]`` bool: node itself, its ancestors (``depth`` steps at most, the node included) and always the root."""
    batch, num_nodes = parent.shape
    reach = torch.zeros(batch, num_nodes, num_nodes, dtype=torch.bool)
    reach[:, :, 0] = True
    # Column 0 is already set, so a walk that has left the tree may keep writing there.
    node = torch.arange(num_nodes).expand(batch, -1)
    for _ in range(depth):
        reach.scatter_(2, node[:, :, None], True)
        node = parent.gather(1, node).clamp_min(0)
    return reach


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill mask, positions and links of EAGLE's regular draft tree.

    Args:
        parent_list: ``[B, topk * (depth - 1) + 1]`` (or narrower) integer, candidate number of each expanded node.
        selected_index: ``[B, N - 1]`` integer, candidate number of each kept node in increasing order; candidate ``c`` hangs
            below expanded node ``c // topk``, 0 being the root.
        verified_seq_len: ``[B]`` integer, committed tokens ``L`` of each request.
        tree_mask: flat bool or uint8, written in place. ``FULL_MASK`` (0): per request ``N`` rows of ``L + N``, of which only the
            last ``N`` columns are written. ``QLEN_ONLY`` (1): per request ``N`` rows of ``N``.
        positions: ``[B * N]`` integer, written with ``L`` + depth of the node.
        retrieve_index, retrieve_next_token, retrieve_next_sibling: ``[B, N]`` int64 links, filled with -1 by the caller.
        topk, depth: branching and depth of the draft; the mask follows at most ``depth`` ancestors.
        draft_token_num: ``N``.
        tree_mask_mode: 0 or 1.

    Raises:
        NotImplementedError: for the bit-packed mask mode.
    """
    if int(tree_mask_mode) not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree mask mode {tree_mask_mode} has no CPU kernel; use FULL_MASK or QLEN_ONLY")
    batch, num_nodes = verified_seq_len.numel(), draft_token_num
    if batch == 0:
        return
    parent = _parents(parent_list, selected_index, topk)
    reach = _ancestors(parent, depth)
    lengths = verified_seq_len.long()

    positions.view(batch, num_nodes).copy_(lengths[:, None] + reach.sum(-1) - 1)
    node = torch.arange(num_nodes)
    is_child = parent[:, :, None] == node
    write_links(is_child, parent, retrieve_index, retrieve_next_token, retrieve_next_sibling)

    flat_mask = tree_mask.view(-1)
    width = lengths + num_nodes if int(tree_mask_mode) == FULL_MASK else torch.full_like(lengths, num_nodes)
    first = (width * num_nodes).cumsum(0) - width * num_nodes
    row = first[:, None] + node * width[:, None] + width[:, None] - num_nodes
    cell = row[:, :, None] + node
    flat_mask[cell.view(-1)] = reach.view(-1).to(flat_mask.dtype)


def write_links(
    is_below: torch.Tensor,
    parent: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
) -> None:
    """Number the nodes and link them; children of a node are ordered by node number.

    Args:
        is_below: ``[B, N, N]`` bool, ``[b, i, j]``: ``i`` is a child of ``j``, or any descendant (children come first in number).
        parent: ``[B, N]`` int64, -1 for nodes without one; those get no sibling.
        retrieve_index, retrieve_next_token, retrieve_next_sibling: ``B * N`` int64, written in place.
    """
    batch, num_nodes = parent.shape
    node = torch.arange(num_nodes)
    retrieve_index.view(-1).copy_(torch.arange(batch * num_nodes))
    first_child = torch.where(is_below, node[:, None], num_nodes).amin(1)
    later_sibling = (parent[:, :, None] == parent[:, None, :]) & (node > node[:, None]) & (parent >= 0)[:, :, None]
    next_sibling = torch.where(later_sibling, node, num_nodes).amin(2)
    for link, target in ((first_child, retrieve_next_token), (next_sibling, retrieve_next_sibling)):
        target.view(batch, num_nodes).copy_(torch.where(link < num_nodes, link, -1))


def verify_tree_greedy_cpu(
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Follow the target's own tokens down each tree.

    From the root, the child whose token equals the target's prediction at the present node is accepted, until none does or
    ``D - 1`` were. Pointer chasing over a few dozen nodes: Python lists beat torch indexing, one call a node, by far.

    Args:
        predicts: ``[B * N]`` int32, written at the accepted nodes only: the target's token behind each.
        accept_index: ``[B, D]`` int32 filled with -1 by the caller; gets the flat numbers of the accepted nodes, root first.
        accept_token_num: ``[B]`` int32, written with the number of accepted nodes without the root.
        candidates: ``[B, N]`` int64 token of each node.
        retrive_index, retrive_next_token, retrive_next_sibling: ``[B, N]`` int64 links (the spelling is SGLang's).
        target_predict: ``[B, N]`` int64 token that the target predicts behind each node.
    """
    max_accepted = accept_index.shape[1] - 1
    target = target_predict.reshape(-1).tolist()
    counts: list[int] = []
    accepted: list[list[int]] = []
    for tokens, flat, child, sibling in zip(
        candidates.tolist(), retrive_index.tolist(), retrive_next_token.tolist(), retrive_next_sibling.tolist(), strict=True
    ):
        path, node = [flat[0]], child[0]
        while len(path) <= max_accepted:
            wanted = target[path[-1]]
            while node != -1 and tokens[node] != wanted:
                node = sibling[node]
            if node == -1:
                break
            path.append(flat[node])
            node = child[node]
        accepted.append(path)
        counts.append(len(path) - 1)
    if not accepted:
        return
    for row, path in zip(accept_index, accepted, strict=True):
        row[: len(path)] = torch.tensor(path, dtype=accept_index.dtype)
    accept_token_num.copy_(torch.tensor(counts, dtype=accept_token_num.dtype))
    nodes = torch.tensor([node for path in accepted for node in path])
    predicts[nodes] = target_predict.reshape(-1)[nodes].to(predicts.dtype)

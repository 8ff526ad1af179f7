# SPDX-License-Identifier: Apache-2.0
"""Lossless sampling over a draft tree, and the probability filters it needs."""

from __future__ import annotations

import torch


def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Accept a path of each tree so that the tokens follow the target's distribution.

    At each accepted node one uniform number runs over the children in sibling order; a child is accepted when the number falls
    below the children's summed target probability so far. When all are rejected, or no child is left, the last token is drawn
    from what remains of the target's distribution. With both thresholds 1 the result is distributed as plain sampling.

    Args:
        predicts: ``[B * N]`` int32, written at the accepted nodes: the token behind each.
        accept_index: ``[B, D]`` int32 filled with -1 by the caller; gets the flat numbers of the accepted nodes, root first.
        accept_token_num: ``[B]`` int32, number of accepted nodes without the root.
        candidates, retrive_index, retrive_next_token, retrive_next_sibling: ``[B, N]`` int64.
        uniform_samples: ``[B, N]`` float32 in [0, 1), one for each node's children.
        uniform_samples_for_final_sampling: ``[B]`` float32 in [0, 1).
        target_probs: ``[B, N, V]`` float32, the target's distribution behind each node.
        draft_probs: ``[B, N, V]`` float32, overwritten at rejected tokens; zeros on entry for target-only sampling.
        threshold_single: accept any child whose probability reaches it; below 1 the result is lossy.
        threshold_acc: divides the summed probability; below 1 the result is lossy.
        deterministic: part of the signature; this function always is.
    """
    batch = candidates.shape[0]
    if batch == 0:
        return
    max_accepted = accept_index.shape[1] - 1
    threshold_acc = max(float(threshold_acc), 1e-9)
    target, rejected, coins = target_probs.numpy(), draft_probs.numpy(), uniform_samples.tolist()
    tokens, flat = candidates.tolist(), retrive_index.tolist()
    child, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    last_nodes = []
    for b in range(batch):
        node, count = 0, 0
        accept_index[b, 0] = flat[b][0]
        while count < max_accepted:
            mass, next_node = 0.0, child[b][node]
            while next_node != -1:
                token = tokens[b][next_node]
                probability = float(target[b, node, token])
                mass += probability
                reached = coins[b][node] < mass / threshold_acc or probability >= threshold_single
                if probability > 0 and reached:
                    break
                rejected[b, node, token] = target[b, node, token]
                next_node = sibling[b][next_node]
            if next_node == -1:
                break
            predicts[flat[b][node]] = tokens[b][next_node]
            count += 1
            accept_index[b, count] = flat[b][next_node]
            node = next_node
        accept_token_num[b] = count
        last_nodes.append(node)

    rows = torch.arange(batch), torch.tensor(last_nodes)
    remaining = target_probs[rows]
    # A path of full length was cut by the window, not by a rejection: its last token comes from the whole distribution.
    was_rejected = accept_token_num[:, None] < max_accepted
    remaining = (remaining - torch.where(was_rejected, draft_probs[rows], 0)).clamp_min(0)
    cumulative = remaining.cumsum(-1)
    threshold = uniform_samples_for_final_sampling[:, None] * cumulative[:, -1:]
    drawn = (cumulative <= threshold).sum(-1)
    # Rounding can leave the threshold at the total; the last token with any mass is then the one.
    last_possible = remaining.shape[-1] - 1 - remaining.flip(-1).gt(0).int().argmax(-1)
    drawn = torch.minimum(drawn, last_possible)
    predicts[retrive_index[rows]] = drawn.to(predicts.dtype)


def top_k_renorm_prob(probs: torch.Tensor, top_ks: torch.Tensor) -> torch.Tensor:
    """Keep the ``top_ks`` largest probabilities of each row and renormalise.

    Args:
        probs: ``[T, V]`` float.
        top_ks: ``[T]`` integer, clamped to ``[1, V]``.

    Returns:
        ``[T, V]``; of equal probabilities at the edge the lower token ids stay.
    """
    ordered, token = probs.sort(dim=-1, descending=True, stable=True)
    limit = top_ks.view(-1, 1).clamp(1, probs.shape[-1])
    ordered = ordered.masked_fill(torch.arange(probs.shape[-1]) >= limit, 0.0)
    kept = torch.zeros_like(probs).scatter_(-1, token, ordered)
    return kept / kept.sum(-1, keepdim=True)


def top_p_renorm_prob(probs: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Keep the smallest set of largest probabilities whose sum reaches ``top_ps`` and renormalise.

    Args:
        probs: ``[T, V]`` float.
        top_ps: ``[T]`` float in (0, 1].

    Returns:
        ``[T, V]``; the most probable token always stays.
    """
    ordered, token = probs.sort(dim=-1, descending=True, stable=True)
    mass_before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(mass_before > top_ps.view(-1, 1), 0.0)
    kept = torch.zeros_like(probs).scatter_(-1, token, ordered)
    return kept / kept.sum(-1, keepdim=True)

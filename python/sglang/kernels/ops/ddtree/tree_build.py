# SPDX-License-Identifier: Apache-2.0
"""Best-first draft tree under a node budget (DDTree, arXiv 2604.12989).

Notation: B requests, D = draft block - 1 drafted positions, K candidates a
position, N = budget + 1 nodes (root included), W = ceil(N / 32) mask words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sglang.kernels.ops.ddtree.native import native_op

MAX_NODES = 257
MAX_DEPTH = 63
MAX_CANDIDATES = 64


def mask_word_count(num_nodes: int) -> int:
    """32-bit words that hold one mask bit for each of ``num_nodes`` nodes."""
    return (num_nodes + 31) // 32


@dataclass
class DraftTree:
    """A batch of draft trees in fixed-shape buffers.

    Node 0 is the root (the last committed token). An ancestor always has a
    smaller index than its descendants. When the candidates run out before the
    budget, ``num_nodes`` < N and the rest is padding: token 0, depth 0, parent
    -1, not linked, seeing the root and itself, so that it can never be accepted and
    never gives an empty attention row.

    Attributes:
        tokens: int64 [B, N].
        parents: int32 [B, N], -1 for the root and for padding.
        depths: int32 [B, N], 0 for the root.
        positions: int64 [B, N], prefix length + depth.
        mask_words: int32 [B, N, W] holding uint32 bits; bit j % 32 of word
            j // 32 of row i says that node i sees node j.
        first_child: int32 [B, N], -1 without children.
        next_sibling: int32 [B, N], -1 for a last sibling.
        num_nodes: int32 [B], nodes in use, root included.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    positions: torch.Tensor
    mask_words: torch.Tensor
    first_child: torch.Tensor
    next_sibling: torch.Tensor
    num_nodes: torch.Tensor

    @classmethod
    def empty(
        cls, batch_size: int, num_nodes: int, device: torch.device | str
    ) -> DraftTree:
        def new(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        shape = (batch_size, num_nodes)
        return cls(
            tokens=new(*shape, dtype=torch.int64),
            parents=new(*shape, dtype=torch.int32),
            depths=new(*shape, dtype=torch.int32),
            positions=new(*shape, dtype=torch.int64),
            mask_words=new(*shape, mask_word_count(num_nodes), dtype=torch.int32),
            first_child=new(*shape, dtype=torch.int32),
            next_sibling=new(*shape, dtype=torch.int32),
            num_nodes=new(batch_size, dtype=torch.int32),
        )

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The buffers in the order of the native operator's outputs."""
        return (
            self.tokens,
            self.parents,
            self.depths,
            self.positions,
            self.mask_words,
            self.first_child,
            self.next_sibling,
            self.num_nodes,
        )

    def rows(self, batch_size: int) -> DraftTree:
        """Views of the first ``batch_size`` requests."""
        return DraftTree(*(tensor[:batch_size] for tensor in self.tensors()))


def tree_build(
    candidate_ids: torch.Tensor,
    candidate_logprobs: torch.Tensor,
    root_tokens: torch.Tensor,
    prefix_lens: torch.Tensor,
    tree: DraftTree,
    *,
    spine: bool = True,
) -> None:
    """Grow one tree a request and write it to ``tree``.

    A node's score is the float32 sum of the log-probabilities on its path,
    added root first. Nodes enter by descending score; equal scores by smaller
    parent index, then by better candidate rank. With ``spine`` the chain of
    rank-0 candidates is always whole when the budget holds it: once the nodes
    left equal the missing links of that chain, only they are added.

    Args:
        candidate_ids: int64 [B, D, K], distinct within a position.
        candidate_logprobs: float32 [B, D, K], descending within a position.
            Values above 0 count as 0; -inf or NaN ends the position's list.
        root_tokens: int64 [B].
        prefix_lens: int64 [B], committed tokens, which is the root's position.
        tree: output; N <= 257. D <= 63, K <= 64.
    """
    _check(candidate_ids, candidate_logprobs, root_tokens, prefix_lens, tree)
    if tree.tokens.shape[0] == 0:
        return
    op = native_op("tree_build")
    if op is None:
        tree_build_reference(
            candidate_ids,
            candidate_logprobs,
            root_tokens,
            prefix_lens,
            tree,
            spine=spine,
        )
        return
    op(
        candidate_ids,
        candidate_logprobs,
        root_tokens,
        prefix_lens,
        *tree.tensors(),
        spine,
    )


def tree_build_reference(
    candidate_ids: torch.Tensor,
    candidate_logprobs: torch.Tensor,
    root_tokens: torch.Tensor,
    prefix_lens: torch.Tensor,
    tree: DraftTree,
    *,
    spine: bool = True,
) -> None:
    """:func:`tree_build` in torch, without a host synchronisation.

    The heap never holds more than one candidate a node, its best child not yet
    in the tree, so the heap is a row of N scores and a pop is an argmax, whose
    first-maximum rule is the tie rule.
    """
    batch, depth_limit, width = candidate_ids.shape
    num_nodes = tree.tokens.shape[1]
    device = candidate_ids.device
    neg_inf = float("-inf")
    rows = torch.arange(batch, device=device)

    # One more rank and one more depth, both impossible, end every list.
    logprobs = torch.full(
        (batch, depth_limit + 1, width + 1), neg_inf, device=device
    )
    usable = torch.nan_to_num(candidate_logprobs, nan=neg_inf, neginf=neg_inf)
    logprobs[:, :-1, :-1] = usable.clamp(max=0.0)
    dead = torch.isneginf(logprobs).cumsum(-1) > 0
    logprobs.masked_fill_(dead, neg_inf)
    ids = torch.zeros(
        (batch, depth_limit + 1, width + 1), dtype=torch.int64, device=device
    )
    ids[:, :-1, :-1] = candidate_ids

    tree.tokens.zero_()
    tree.tokens[:, 0] = root_tokens
    tree.parents.fill_(-1)
    tree.depths.zero_()
    tree.first_child.fill_(-1)
    tree.next_sibling.fill_(-1)
    tree.num_nodes.fill_(1)

    sees = torch.eye(num_nodes, dtype=torch.bool, device=device).repeat(batch, 1, 1)
    sees[:, :, 0] = True
    score = torch.zeros(batch, num_nodes, device=device)
    frontier = torch.full((batch, num_nodes), neg_inf, device=device)
    frontier[:, 0] = logprobs[:, 0, 0]
    next_rank = torch.zeros(batch, num_nodes, dtype=torch.int64, device=device)
    last_child = torch.zeros(batch, num_nodes, dtype=torch.int64, device=device)

    spine_tip = torch.zeros(batch, dtype=torch.int64, device=device)
    spine_length = (~torch.isneginf(logprobs[:, :, 0])).cumprod(-1).sum(-1)
    keeps_spine = spine_length < num_nodes
    if not spine:
        keeps_spine = torch.zeros_like(keeps_spine)
    missing = torch.where(keeps_spine, spine_length, 0)

    for node in range(1, num_nodes):
        parent = frontier.argmax(-1)
        forced = keeps_spine & (missing == num_nodes - node) & (missing > 0)
        parent = torch.where(forced, spine_tip, parent)
        value = frontier[rows, parent]
        grows = ~torch.isneginf(value)
        rank = next_rank[rows, parent]
        depth = tree.depths[rows, parent].long()

        tree.tokens[:, node] = torch.where(grows, ids[rows, depth, rank], 0)
        tree.parents[:, node] = torch.where(grows, parent, -1).int()
        tree.depths[:, node] = torch.where(grows, depth + 1, 0).int()
        tree.num_nodes += grows.int()

        elder = last_child[rows, parent]
        first = grows & (rank == 0)
        later = grows & (rank > 0)
        tree.first_child[rows, parent] = torch.where(
            first, node, tree.first_child[rows, parent]
        ).int()
        tree.next_sibling[rows, elder] = torch.where(
            later, node, tree.next_sibling[rows, elder]
        ).int()
        last_child[rows, parent] = torch.where(grows, node, elder)

        inherited = sees[rows, parent] & grows.unsqueeze(-1)
        sees[:, node] |= inherited

        score[:, node] = value
        next_rank[rows, parent] = rank + grows.long()
        sibling = logprobs[rows, depth, (rank + 1).clamp(max=width)]
        frontier[rows, parent] = torch.where(
            grows, score[rows, parent] + sibling, value
        )
        child = logprobs[rows, (depth + 1).clamp(max=depth_limit), 0]
        frontier[:, node] = torch.where(grows, value + child, neg_inf)

        on_spine = keeps_spine & grows & (rank == 0) & (parent == spine_tip)
        spine_tip = torch.where(on_spine, node, spine_tip)
        missing = missing - on_spine.long()

    torch.add(prefix_lens.unsqueeze(1), tree.depths, out=tree.positions)
    tree.mask_words.copy_(pack_mask(sees))


def pack_mask(sees: torch.Tensor) -> torch.Tensor:
    """Pack bool [..., N] into int32 [..., ceil(N / 32)], node 0 in bit 0."""
    num_nodes = sees.shape[-1]
    words = mask_word_count(num_nodes)
    padded = torch.nn.functional.pad(sees, (0, words * 32 - num_nodes))
    bits = padded.view(*sees.shape[:-1], words, 32).to(torch.int64)
    weights = torch.ones(32, dtype=torch.int64, device=sees.device) << torch.arange(
        32, device=sees.device
    )
    packed = (bits * weights).sum(-1)
    # The upper half of the unsigned range is the negative half of int32.
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def unpack_mask(mask_words: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """Inverse of :func:`pack_mask`: bool [..., N]."""
    shifts = torch.arange(32, dtype=torch.int32, device=mask_words.device)
    bits = (mask_words.unsqueeze(-1) >> shifts) & 1
    return bits.flatten(-2)[..., :num_nodes].bool()


def _check(ids, logprobs, roots, prefix_lens, tree: DraftTree) -> None:
    batch, num_nodes = tree.tokens.shape
    if ids.ndim != 3 or ids.shape[0] != batch or logprobs.shape != ids.shape:
        raise ValueError(
            f"tree_build: candidates must be [{batch}, D, K] for both ids and "
            f"log-probabilities, got {tuple(ids.shape)} and {tuple(logprobs.shape)}."
        )
    _, depth_limit, width = ids.shape
    if not (
        1 <= num_nodes <= MAX_NODES
        and 1 <= depth_limit <= MAX_DEPTH
        and 1 <= width <= MAX_CANDIDATES
    ):
        raise ValueError(
            f"tree_build: N={num_nodes}, D={depth_limit}, K={width} exceed the limits "
            f"N <= {MAX_NODES}, D <= {MAX_DEPTH}, K <= {MAX_CANDIDATES} or are empty."
        )
    if ids.dtype != torch.int64 or logprobs.dtype != torch.float32:
        raise TypeError(
            "tree_build: candidate ids must be int64 and log-probabilities float32, "
            f"got {ids.dtype} and {logprobs.dtype}."
        )
    for name, tensor in (("root_tokens", roots), ("prefix_lens", prefix_lens)):
        if tensor.shape != (batch,) or tensor.dtype != torch.int64:
            raise ValueError(
                f"tree_build: {name} must be int64 [{batch}], "
                f"got {tensor.dtype} {tuple(tensor.shape)}."
            )

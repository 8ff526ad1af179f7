# SPDX-License-Identifier: Apache-2.0
"""Best-first draft trees (DDTree, arXiv 2604.12989): one tree a request, grown on the device.

B requests, D drafted positions, K candidates a position, N nodes a tree (root included), W = ceil(N / 32).

| argument | shape | dtype | note |
|---|---|---|---|
| candidate_ids | [B, D, K] | int64 | distinct within a position |
| candidate_logprobs | [B, D, K] | float32 | descending within a position; above 0 counts as 0; -inf or NaN ends the list |
| root_tokens, prefix_lens | [B] | int64 | committed token and committed length, which is the root's position |
| tokens, positions | [B, N] | int64 | written; position is prefix length + depth |
| parents, depths, first_child, next_sibling | [B, N] | int32 | written; -1 stands for none |
| mask_words | [B, N, W] | int32 or uint32 | written; bit j % 32 of word j // 32 of row i: node i sees node j |
| num_nodes | [B] | int32 | written; nodes in use, root included |

A node's score is the float32 sum of the log-probabilities on its path, added root first. Nodes enter by descending score;
equal scores by smaller parent index, then by smaller rank. An ancestor has the smaller index. With `spine` the chain of
rank-0 candidates is whole whenever N - 1 nodes can hold it: once the nodes left equal its missing links, only those enter.
Places that no candidate fills: token 0, parent -1, depth 0, not linked, seeing the root and themselves.

1 <= N <= 257, 1 <= D <= 63, 1 <= K <= 64, all tensors contiguous. The operator allocates nothing and does not
synchronise; it may be captured in a CUDA graph. The result does not depend on the device.

Errors: ValueError naming the argument, for shapes, dtypes, devices and strides.
"""

from __future__ import annotations

import torch

from sgl_kernel_ddtree import _load


def tree_build(
    candidate_ids: torch.Tensor,
    candidate_logprobs: torch.Tensor,
    root_tokens: torch.Tensor,
    prefix_lens: torch.Tensor,
    tokens: torch.Tensor,
    parents: torch.Tensor,
    depths: torch.Tensor,
    positions: torch.Tensor,
    mask_words: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    num_nodes: torch.Tensor,
    spine: bool = True,
) -> None:
    """Writes the trees; see the module's docstring for the contract."""
    _load.load(candidate_ids.device).tree_build(
        candidate_ids,
        candidate_logprobs,
        root_tokens,
        prefix_lens,
        tokens,
        parents,
        depths,
        positions,
        mask_words,
        first_child,
        next_sibling,
        num_nodes,
        spine,
    )

# SPDX-License-Identifier: Apache-2.0
"""Walk of the target's choices down a draft tree.

B requests, N nodes a tree, C columns: the longest path, root included.

| argument | shape | dtype | note |
|---|---|---|---|
| tokens, parents | [B, N] | int64, int32 | as `tree_build` wrote them |
| target_tokens | [B, N] | int64 | the target's choice after each node |
| prefix_lens | [B] | int64 | |
| path_nodes | [B, C] | int32 | written; the path, root first, then -1 |
| commit_lens | [B] | int32 | written; nodes on the path |
| bonus | [B] | int64 | written; the choice at the path's last node |
| path_tokens | [B, C] | int64 | written; the path's tokens without the root, then the bonus, then 0 |
| new_seq_lens | [B] | int64 | written; prefix length + `commit_lens` |

From the root, the walk moves to the child that carries the choice at the current node, for as long as there is one.

1 <= N <= 257, 1 <= C <= 64, all tensors contiguous. The operator allocates nothing and does not synchronise; it may be
captured in a CUDA graph.

Errors: ValueError naming the argument, for shapes, dtypes, devices and strides.
"""

from __future__ import annotations

import torch

from sgl_kernel_ddtree import _load


def tree_accept(
    tokens: torch.Tensor,
    parents: torch.Tensor,
    target_tokens: torch.Tensor,
    prefix_lens: torch.Tensor,
    path_nodes: torch.Tensor,
    commit_lens: torch.Tensor,
    bonus: torch.Tensor,
    path_tokens: torch.Tensor,
    new_seq_lens: torch.Tensor,
) -> None:
    """Writes the accepted paths; see the module's docstring for the contract."""
    _load.load(tokens.device).tree_accept(
        tokens,
        parents,
        target_tokens,
        prefix_lens,
        path_nodes,
        commit_lens,
        bonus,
        path_tokens,
        new_seq_lens,
    )

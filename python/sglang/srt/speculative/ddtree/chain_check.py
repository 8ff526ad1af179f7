# SPDX-License-Identifier: Apache-2.0
"""Check, in the step, that a tree accepts at least what the greedy chain would.

With ``SGLANG_DDTREE_CHECK_CHAIN=1`` every step also walks the drafter's best
token at each position, which is the chain that DFLASH would verify from the same
state, on the target's choices of this step. The counts stand in ``/server_info``.
"""

from __future__ import annotations

import torch
from sglang.kernels.ops.ddtree.tree_accept import AcceptedPath
from sglang.kernels.ops.ddtree.tree_build import DraftTree


class ChainCheck:
    """Counts states, and those in which the tree accepted less than the chain.

    The chain's nodes are found by token and parent and not by the links that
    acceptance relies on. A chain that leaves the tree (no spine, or a budget
    below the block) is followed as far as it is in the tree, plus the one token
    beyond on which the target's choice is still known.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)

    def observe(
        self,
        chain: torch.Tensor,
        tree: DraftTree,
        target_tokens: torch.Tensor,
        path: AcceptedPath,
    ) -> None:
        """Account for one step; nothing waits for the device.

        Args:
            chain: int64 [B, D], the best candidate of each position.
            tree: what was verified.
            target_tokens: int64 [B, N], the target's choice after each node.
            path: what was accepted.
        """
        batch, drafted = chain.shape
        current = torch.zeros(batch, 1, dtype=torch.int64, device=chain.device)
        alive = torch.ones_like(current, dtype=torch.bool)
        accepted = torch.zeros_like(current)
        for position in range(drafted):
            token = chain[:, position, None]
            alive = alive & (target_tokens.gather(1, current) == token)
            accepted += alive
            is_next = (tree.parents == current) & (tree.tokens == token)
            alive = alive & is_next.any(1, keepdim=True)
            current = is_next.int().argmax(1, keepdim=True)
        short = accepted.squeeze(1) > path.commit_lens - 1
        self._counts[0] += batch
        self._counts[1] += short.sum()

    def counts(self) -> dict[str, int]:
        """Waits for the device; for readers outside the step."""
        states, violations = self._counts.tolist()
        return {"states": states, "violations": violations}

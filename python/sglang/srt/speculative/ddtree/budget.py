# SPDX-License-Identifier: Apache-2.0
"""Widths of a DDTREE step, all derived from the draft block and the node budget."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.kernels.ops.ddtree.tree_build import MAX_CANDIDATES, MAX_DEPTH, MAX_NODES

MAX_BUDGET = MAX_NODES - 1


@dataclass(frozen=True)
class TreeWidths:
    """Fixed widths of every DDTREE step.

    Attributes:
        block_size: B, tokens of a draft block, the committed token included.
        budget: nodes a tree may have besides its root.
        candidates: K, tokens considered at each drafted position.
    """

    block_size: int
    budget: int
    candidates: int

    def __post_init__(self) -> None:
        if not 1 <= self.budget <= MAX_BUDGET:
            raise ValueError(
                f"--speculative-ddtree-budget must be between 1 and {MAX_BUDGET}, "
                f"got {self.budget}."
            )
        if not 1 <= self.candidates <= MAX_CANDIDATES:
            raise ValueError(
                f"--speculative-ddtree-topk must be between 1 and {MAX_CANDIDATES}, "
                f"got {self.candidates}."
            )
        if not 2 <= self.block_size <= MAX_DEPTH + 1:
            raise ValueError(
                "DDTREE needs a draft block of 2 to "
                f"{MAX_DEPTH + 1} tokens, got {self.block_size}. The draft's "
                "config.json sets it; --speculative-dflash-block-size overrides it."
            )

    @property
    def max_depth(self) -> int:
        """D, the drafted positions: no path accepts more drafts than this."""
        return self.block_size - 1

    @property
    def num_nodes(self) -> int:
        """N, the target's rows a request, root included."""
        return self.budget + 1

    @property
    def window(self) -> int:
        """KV slots a step writes: the draft's block or the target's nodes."""
        return max(self.num_nodes, self.block_size)

    @property
    def holds_greedy_chain(self) -> bool:
        """Whether the whole DFLASH chain fits, so that no step accepts less."""
        return self.budget >= self.max_depth

# SPDX-License-Identifier: Apache-2.0
"""Device memory of a turn: what its steps hand to each other, and what they emit together."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TurnLayout:
    """Columns of an output row: tokens, then each step's count of them, then the turn's sums.

    Attributes:
        block_size: B, the most tokens that a step emits.
        steps: K, the most steps of a turn.
    """

    block_size: int
    steps: int

    @property
    def tokens(self) -> slice:
        return slice(0, self.steps * self.block_size)

    @property
    def lens(self) -> slice:
        return slice(self.tokens.stop, self.tokens.stop + self.steps)

    @property
    def total(self) -> int:
        """Tokens of the turn."""
        return self.lens.stop

    @property
    def nodes(self) -> int:
        """Nodes of all trees of the turn, roots included."""
        return self.lens.stop + 1

    @property
    def step(self) -> int:
        """Steps so far."""
        return self.lens.stop + 2

    @property
    def width(self) -> int:
        return self.lens.stop + 3


@dataclass(frozen=True)
class TurnEnd:
    """What a turn leaves; the rows until the turn after the next one ends.

    Attributes:
        rows: int64 [bs, width].
        bonus: int64 [bs], the last token of each request, which the next turn drafts from.
        seq_lens: int64 [bs], committed tokens behind the turn.
    """

    rows: torch.Tensor
    bonus: torch.Tensor
    seq_lens: torch.Tensor


class TurnState:
    """Buffers of one batch size; those of a smaller one are views of the largest's.

    Attributes:
        seq_lens, bonus, req_pool_indices: int64 [bs], of the step to come.
        rows: int64 [bs, width], what the turn has emitted.
    """

    def __init__(self, layout: TurnLayout, inputs: torch.Tensor, rows: torch.Tensor, kept: torch.Tensor) -> None:
        self.layout = layout
        self._inputs, self.rows, self._kept = inputs, rows, kept
        self.bonus, self.seq_lens, self.req_pool_indices = inputs.unbind(0)
        self._offsets = torch.arange(layout.block_size, device=rows.device)
        self._tokens = rows[:, layout.tokens]
        self._lens = rows[:, layout.lens]
        self._total = rows[:, layout.total]
        self._nodes = rows[:, layout.nodes]
        self._step = rows[:, layout.step]
        self._counts = rows[:, layout.lens.start : layout.step + 1]

    @classmethod
    def allocate(cls, layout: TurnLayout, batch_size: int, device: torch.device | str) -> TurnState:
        """Buffers for up to ``batch_size`` requests, all zero: slot 0 of the pools is nobody's."""

        def new(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        return cls(
            layout,
            new(3, batch_size),
            new(batch_size, layout.width),
            new(2, batch_size, layout.width),
        )

    def views(self, batch_size: int) -> TurnState:
        """Views of the first ``batch_size`` requests."""
        return TurnState(
            self.layout,
            self._inputs[:, :batch_size],
            self.rows[:batch_size],
            self._kept[:, :batch_size],
        )

    def begin(
        self,
        seq_lens: torch.Tensor,
        bonus: torch.Tensor,
        req_pool_indices: torch.Tensor,
    ) -> None:
        """Take over a batch, int64 [bs] each, and forget what was emitted."""
        torch._foreach_copy_(
            [self.seq_lens, self.bonus, self.req_pool_indices],
            [seq_lens, bonus, req_pool_indices],
        )
        self._counts.zero_()

    def advance(
        self,
        tokens: torch.Tensor,
        commit_lens: torch.Tensor,
        bonus: torch.Tensor,
        new_seq_lens: torch.Tensor,
        num_nodes: torch.Tensor,
    ) -> None:
        """Append a step's tokens and make its end the start of the next one.

        Args:
            tokens: int64 [bs, B]; the first ``commit_lens`` of each row count.
            commit_lens: integer [bs], at least 1.
            bonus, new_seq_lens: int64 [bs].
            num_nodes: integer [bs].
        """
        # Columns beyond the step's tokens are overwritten by the next one's.
        self._tokens.scatter_(1, self._total.unsqueeze(1) + self._offsets, tokens)
        self._lens.scatter_(1, self._step.unsqueeze(1), commit_lens.long().unsqueeze(1))
        self._total.add_(commit_lens)
        self._nodes.add_(num_nodes)
        self._step.add_(1)
        self.bonus.copy_(bonus)
        self.seq_lens.copy_(new_seq_lens)

    def end(self, turn: int) -> TurnEnd:
        """What the turn emitted, where the next turn does not write."""
        kept = self._kept[turn % 2]
        kept.copy_(self.rows)
        # Dense: kernels of a step of the worker's own may read them as they are.
        bonus, seq_lens = self._inputs[:2].clone(memory_format=torch.contiguous_format)
        return TurnEnd(kept, bonus, seq_lens)

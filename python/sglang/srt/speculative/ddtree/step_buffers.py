# SPDX-License-Identifier: Apache-2.0
"""The device buffers of a DDTREE step, allocated once at start-up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sglang.kernels.ops.ddtree.tree_accept import AcceptedPath
from sglang.kernels.ops.ddtree.tree_build import DraftTree
from sglang.srt.speculative.ddtree.budget import TreeWidths

# Which of the outputs the scheduler never sees.
UNSEEN = 2


@dataclass
class StepOutput:
    """What a step hands to the scheduler, which copies it to the host later.

    Attributes:
        path: the accepted path; C = B.
        rows: int64 [bs, B], the path's rows among the bs * N verified ones; the
            root's beyond the path.
        num_nodes: int32 [bs], nodes of the verified tree, root included.
    """

    path: AcceptedPath
    rows: torch.Tensor
    num_nodes: torch.Tensor

    def views(self, batch_size: int) -> StepOutput:
        """Views of the first ``batch_size`` requests."""
        return StepOutput(
            self.path.rows(batch_size),
            self.rows[:batch_size],
            self.num_nodes[:batch_size],
        )


@dataclass
class StepBuffers:
    """Buffers of one batch size; those of a smaller one are views of the largest's.

    Everything is overwritten by the next step except the first two ``outputs``, which
    are written in turn: the previous step's may still be on its way to the host.

    Attributes:
        block_ids: int64 [bs, B], the mask token everywhere but in column 0.
        block_positions: int64 [bs, B].
        window_cells: int64 [bs, W], the window's cells in the flattened table.
        window_entries: [bs, W] in the table's dtype.
        window_slots: int64 [bs, W], W = max(N, B).
        row_offsets: int64 [bs, 1], a request's first verified row.
        path_nodes: int32 [bs, B], scratch.
        tree: the draft tree, N nodes.
        outputs: two sets that are handed to the scheduler, and ``UNSEEN``, which steps
            leave to each other that it does not see.
    """

    block_ids: torch.Tensor
    block_positions: torch.Tensor
    window_cells: torch.Tensor
    window_entries: torch.Tensor
    window_slots: torch.Tensor
    row_offsets: torch.Tensor
    path_nodes: torch.Tensor
    tree: DraftTree
    outputs: tuple[StepOutput, StepOutput, StepOutput]

    @classmethod
    def allocate(
        cls,
        widths: TreeWidths,
        batch_size: int,
        *,
        mask_token_id: int,
        table_dtype: torch.dtype,
        device: torch.device | str,
    ) -> StepBuffers:
        """Buffers for up to ``batch_size`` requests."""
        block, window, nodes = widths.block_size, widths.window, widths.num_nodes

        def new(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        def output() -> StepOutput:
            return StepOutput(
                path=AcceptedPath.empty(batch_size, block, device),
                rows=new(batch_size, block),
                num_nodes=new(batch_size, dtype=torch.int32),
            )

        rows = torch.arange(batch_size, device=device).unsqueeze(1)
        return cls(
            block_ids=new(batch_size, block).fill_(mask_token_id),
            block_positions=new(batch_size, block),
            window_cells=new(batch_size, window),
            window_entries=new(batch_size, window, dtype=table_dtype),
            window_slots=new(batch_size, window),
            row_offsets=rows * nodes,
            path_nodes=new(batch_size, block, dtype=torch.int32),
            tree=DraftTree.empty(batch_size, nodes, device),
            outputs=(output(), output(), output()),
        )

    @property
    def batch_size(self) -> int:
        return self.block_ids.shape[0]

    def views(self, batch_size: int) -> StepBuffers:
        """Views of the first ``batch_size`` requests."""
        return StepBuffers(
            block_ids=self.block_ids[:batch_size],
            block_positions=self.block_positions[:batch_size],
            window_cells=self.window_cells[:batch_size],
            window_entries=self.window_entries[:batch_size],
            window_slots=self.window_slots[:batch_size],
            row_offsets=self.row_offsets[:batch_size],
            path_nodes=self.path_nodes[:batch_size],
            tree=self.tree.rows(batch_size),
            outputs=tuple(output.views(batch_size) for output in self.outputs),
        )

    def place(
        self,
        offsets: torch.Tensor,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        table: torch.Tensor,
    ) -> None:
        """Fill the block's positions and the window's slots, behind ``seq_lens``.

        Args:
            offsets: int64 [W], 0 to W - 1.
            seq_lens: int64 [bs], committed tokens.
            req_pool_indices: int64 [bs].
            table: [rows, width], contiguous; the slot of each position of a request.
        """
        first = seq_lens.unsqueeze(1)
        block = self.block_ids.shape[1]
        torch.add(offsets[:block], first, out=self.block_positions)
        torch.add(offsets, first, out=self.window_cells)
        self.window_cells.add_(req_pool_indices.unsqueeze(1), alpha=table.stride(0))
        torch.index_select(
            table.view(-1),
            0,
            self.window_cells.view(-1),
            out=self.window_entries.view(-1),
        )
        self.window_slots.copy_(self.window_entries)

    def locate(self, output: StepOutput) -> None:
        """Fill ``output.rows`` from its path and keep the tree's node counts."""
        torch.clamp(output.path.nodes, min=0, out=self.path_nodes)
        torch.add(self.row_offsets, self.path_nodes, out=output.rows)
        output.num_nodes.copy_(self.tree.num_nodes)

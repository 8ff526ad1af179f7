# SPDX-License-Identifier: Apache-2.0
"""DFLASH with chained steps: a chain is a tree without branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.kernels.ops.ddtree.native import prepare_native
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.speculative.chained.worker import ChainsTurns
from sglang.srt.speculative.ddtree.budget import TreeWidths
from sglang.srt.speculative.ddtree.tree_steps import TreeSteps
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch


class BestTokens:
    """The drafter's best token at each position, as the only candidate.

    Attributes:
        ids: int64 [max_bs, B - 1, 1].
        logprobs: float32 [max_bs, B - 1, 1], all 0.
    """

    def __init__(self, worker: DFlashWorkerV2, max_batch: int, block_size: int) -> None:
        shape = (max_batch, block_size - 1, 1)
        sampler = worker._draft_sampler
        self._worker = worker
        # Where the captured draft leaves them.
        self.ids = (
            torch.zeros(shape, dtype=torch.int64, device=worker.device)
            if sampler is None
            else sampler.out[: max_batch * (block_size - 1)].view(-1, block_size - 1, 1)
        )
        self.logprobs = torch.zeros(self.ids.shape, device=worker.device)

    def __call__(self, hidden_states: torch.Tensor) -> None:
        """Fill the first rows from the draft's hidden states [bs * B, hidden]."""
        drafted = self.ids.shape[1]
        states = hidden_states.view(-1, drafted + 1, hidden_states.shape[-1])[:, 1:]
        head = self._worker.target_worker.model_runner.model.lm_head
        best = self._worker._greedy_sample_from_vocab_parallel_head(
            hidden_states=states.reshape(-1, states.shape[-1]), lm_head=head
        )
        self.ids[: states.shape[0]].copy_(best.view(-1, drafted, 1))


class ChainedDFlashWorker(ChainsTurns, TreeSteps, DFlashWorkerV2):
    """SGLang's DFLASH worker, whose greedy batches come several steps a turn on ``ddtree_sm120``.

    Everything else, sampling included, is SGLang's.
    """

    grows_trees = False
    spine = True
    # A chain's rows are written where they stay.
    _kv_rows = None

    def finish_setup(self) -> None:
        """Last step of the start-up: the pools have their final sizes and backing."""
        self._prepare_turns()

    def _before_turns(self) -> None:
        self.widths = TreeWidths(
            block_size=int(self.block_size), budget=int(self.block_size) - 1, candidates=1
        )
        prepare_native(self.device)
        self._allocate_step_buffers()
        self._candidates = BestTokens(self, self._buffers.batch_size, self.widths.block_size)

    def forward_batch_generation(
        self,
        batch: ScheduleBatch,
        on_publish=None,
        grammar_barrier=None,
        pp_proxy_tensors=None,
    ) -> GenerationBatchResult:
        """One turn of the scheduler."""
        if self._turns is not None and batch.forward_mode.is_decode() and not batch.is_extend_in_batch:
            draft_input: Any | None = batch.spec_info
            most_steps = self._steps_of_turn(batch) if isinstance(draft_input, DFlashDraftInputV2) else 0
            if most_steps:
                return self._run_turn(batch, draft_input, most_steps, on_publish)
        return super().forward_batch_generation(batch, on_publish, grammar_barrier, pp_proxy_tensors)

# SPDX-License-Identifier: Apache-2.0
"""A DDTREE step in parts; a chain is a tree without branches, so a DFLASH step too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.kernels.ops.ddtree.tree_accept import tree_accept
from sglang.srt.speculative.chained.state import TurnState
from sglang.srt.speculative.chained.step import StepParts
from sglang.srt.speculative.ddtree.step_buffers import UNSEEN
from sglang.srt.speculative.ddtree.tree_steps import HostLens, Step
from sglang.srt.speculative.ddtree.verify_input import tree_verify_input, verify_batch_of

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.speculative.ddtree.chain_check import ChainCheck
    from sglang.srt.speculative.ddtree.tree_steps import TreeSteps


class TreeParts(StepParts):
    """Calls the worker's pieces with what lies in the turn's state.

    Args:
        worker: whose pieces they are.
        chain_check: looks at every step; None for none.
    """

    def __init__(self, worker: TreeSteps, chain_check: ChainCheck | None) -> None:
        self._worker = worker
        self._chain_check = chain_check
        self._most_keys = worker.model_runner.model_config.context_len
        self._step: Step | None = None

    def draft_batch(self, state: TurnState) -> ForwardBatch:
        batch_size = len(state.seq_lens)
        bound = torch.full((batch_size,), self._most_keys, dtype=torch.int64)
        self._step = self._worker._open_step(
            state.seq_lens,
            state.req_pool_indices,
            state.bonus,
            HostLens(None, bound, batch_size * self._most_keys),
            # What is handed to the scheduler is kept by the state; a step of the worker's own may be on its way.
            turn=UNSEEN,
        )
        return self._worker._block_batch(self._step, can_run_graph=True)

    def after_draft(self, hidden_states: torch.Tensor) -> None:
        self._worker._candidates(hidden_states)

    def verify_batch(self, state: TurnState) -> ForwardBatch:
        worker, step = self._worker, self._step
        worker._grow_tree(step)
        lens, total = step.host_lens.keys(worker.widths.num_nodes)
        runner = worker.model_runner
        verify_input = tree_verify_input(runner, step.buffers.tree, step.seq_lens, total, step.plan)
        return verify_batch_of(
            runner,
            verify_input,
            req_pool_indices=step.req_pool_indices,
            prefix_lens=step.seq_lens,
            host_lens=lens,
            host_sum=total,
        )

    def accept(self, state: TurnState, output: LogitsProcessorOutput) -> None:
        worker, step = self._worker, self._step
        tree, path = step.buffers.tree, step.output.path
        chosen = _argmax(worker._target_logits_processor, output.next_token_logits)
        chosen = chosen.view_as(tree.tokens)
        tree_accept(tree, chosen, step.seq_lens, path)
        step.buffers.locate(step.output)
        worker._commit(step, output.hidden_states)
        if self._chain_check is not None:
            self._chain_check.observe(worker._candidates.ids[: step.size, :, 0], tree, chosen, path)
        state.advance(path.tokens, path.commit_lens, path.bonus, path.new_seq_lens, step.output.num_nodes)


def _argmax(processor, logits: torch.Tensor) -> torch.Tensor:
    """int64 [rows]; a processor may hand out a shard whose gather was put off."""
    if processor is not None and processor.is_deferred_shard(logits):
        return processor.deferred_argmax(logits)
    return logits.argmax(dim=-1)

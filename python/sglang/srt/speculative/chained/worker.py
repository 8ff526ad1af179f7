# SPDX-License-Identifier: Apache-2.0
"""What a worker of the DFLASH family needs in order to chain its greedy steps."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.chained.eligible import verifies_by_ours, why_not
from sglang.srt.speculative.chained.graphs import GraphedSteps
from sglang.srt.speculative.chained.length import MOST_STEPS
from sglang.srt.speculative.chained.result import TurnResult
from sglang.srt.speculative.chained.self_test import compare_steps
from sglang.srt.speculative.chained.state import TurnState
from sglang.srt.speculative.chained.tree_parts import TreeParts
from sglang.srt.speculative.chained.turn import EagerSteps, Steps, Turns
from sglang.srt.speculative.chained.turn_time import stay_at_one_step, turn_ms_in_force
from sglang.srt.speculative.spec_utils import draft_tp_context

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2

logger = logging.getLogger(__name__)

# Larger batches keep a device busy by themselves.
MOST_REQUESTS = 8


class ChainsTurns:
    """Mixed into a worker that is :class:`~sglang.srt.speculative.ddtree.tree_steps.TreeSteps`."""

    grows_trees = True
    _turns: Turns | None = None
    _why_no_turns: str | None = "not set up"
    # Whose graphs the turns launch; None where they launch none.
    _graph_runners: tuple[Any, Any] | None = None
    _chain_check = None

    def _prepare_turns(self) -> None:
        """At the end of the start-up: capture the graphs of every batch size, or say why steps come one by one.

        The reason is logged and stays in ``/server_info``.
        """
        self._why_no_turns = why_not(self)
        turn_ms = turn_ms_in_force()
        if self._why_no_turns is not None:
            # Nobody asked for the default, so that it cannot be had is no warning.
            level = logging.WARNING if get_spec().speculative_turn_ms else logging.INFO
            logger.log(level, "Speculative steps are not chained: %s.", self._why_no_turns)
            if turn_ms > 0:
                stay_at_one_step()
            return
        self._before_turns()
        on_gpu = torch.device(self.device).type == "cuda"
        most = self._buffers.batch_size
        if on_gpu:
            self._graph_runners = self._present_graph_runners()
            most = min(most, *(max(runner.capture_bs) for runner in self._graph_runners))
        most = min(most, MOST_REQUESTS)
        turns = Turns(
            block_size=self.widths.block_size,
            max_batch=most,
            turn_ms=turn_ms,
            make_steps=self._graphed_steps if on_gpu else self._eager_steps,
            device=self.device,
        )
        try:
            for batch_size in range(1, most + 1):
                turns.prepare(batch_size)
        except Exception as error:  # a server that serves step by step is better than none
            self._why_no_turns = f"their capture failed: {type(error).__name__}: {error}"
            logger.exception("Speculative steps are not chained, although they could be.")
            stay_at_one_step()
            return
        finally:
            self._forget_reads()
        self._turns = turns
        logger.info(
            "Speculative steps: up to %d a turn of the scheduler, as many as the device runs in %g ms, for greedy "
            "batches of up to %d requests%s.",
            MOST_STEPS,
            turn_ms,
            most,
            ", from captured graphs" if on_gpu else "",
        )

    def _forget_reads(self) -> None:
        """The scheduler waits for the reads of the forward before; those of the start-up were of nobody's rows."""
        self.model_runner.shared_read_done_event = None

    def _before_turns(self) -> None:
        """Make what the pieces of a step need and the worker does not have yet."""

    def _graphed_steps(self, state: TurnState) -> Steps:
        parts = TreeParts(self, self._chain_check)
        with torch.inference_mode():
            steps = GraphedSteps(
                state,
                parts,
                self.draft_model_runner,
                self.model_runner,
                self._draft_context(),
                self._workspaces,
            )
            if len(state.seq_lens) == 1:
                most_keys = MOST_STEPS * self.widths.block_size + self.widths.window
                compare_steps(self.model_runner, state, steps, self._eager_steps(state), most_keys=most_keys)
        return steps

    def _workspaces(self) -> list[torch.Tensor]:
        """Of SGLang's writer of the draft's rows, which grow with the longest prefill."""
        helper = self._fused_kv_helper
        if helper is None:
            return []
        return [helper._proj_workspace, helper._k_workspace, helper._v_workspace]

    def _eager_steps(self, state: TurnState) -> Steps:
        parts = TreeParts(self, self._chain_check)
        return EagerSteps(
            state, parts, self.draft_model_runner, self.model_runner, self._draft_context()
        )

    def _draft_context(self):
        return partial(draft_tp_context, self.draft_parallel_layout)

    def turns_state(self) -> dict[str, Any]:
        """How many steps a turn has, for ``/server_info``."""
        if self._turns is None:
            return {"most": 1, "reason": self._why_no_turns}
        if not verifies_by_ours(self.model_runner):
            mode = self.model_runner.verify_switch.mode.value
            return {"most": 1, "reason": f"--ddtree-verify was switched to {mode}"}
        return {"most": MOST_STEPS, "turn_ms": turn_ms_in_force()}

    def _present_graph_runners(self) -> tuple[Any, Any]:
        return self.model_runner.decode_cuda_graph_runner, self.draft_model_runner.decode_cuda_graph_runner

    def _lost_graphs(self) -> bool:
        """Whether SGLang has captured its graphs anew, as a weight update may ask for; then steps come one by one.

        What the captures of a turn's parts read and write went with the older graphs, and to capture them again would
        take slots that by now are somebody's.
        """
        if self._graph_runners is None:
            return False
        pairs = zip(self._graph_runners, self._present_graph_runners(), strict=True)
        if all(kept is present for kept, present in pairs):
            return False
        self._turns = self._graph_runners = None
        self._why_no_turns = "CUDA graphs were captured anew after the start"
        logger.warning("Speculative steps are not chained any more: %s.", self._why_no_turns)
        return True

    def _keep_lens(self, batch: ScheduleBatch) -> None:
        """The scheduler's stream made the lengths, and may drop them while this one still reads."""
        if not batch.seq_lens.is_cpu:
            batch.seq_lens.record_stream(torch.get_device_module(self.device).current_stream())

    def _steps_of_turn(self, batch: ScheduleBatch) -> int:
        """The most steps that a turn of ``batch`` may have; 0 if the batch needs the worker's own step.

        A chained step is greedy, returns tokens only, and stays within the context. Stop strings are looked for in a
        turn's text as a whole, where one behind the end of text must not win, so with them a turn has one step.
        """
        if (
            self._turns is None
            or self._lost_graphs()
            or not self._turns.holds(len(batch.seq_lens))
            or batch.return_hidden_states
            or not self._can_skip_verify_logits(batch, batch.sampling_info)
            or not verifies_by_ours(self.model_runner)
        ):
            return 0
        if any(req.sampling_params.stop_strs or req.sampling_params.stop_regex_strs for req in batch.reqs):
            return 1
        longest = max(req.kv.kv_committed_len for req in batch.reqs)
        fits = longest + get_alloc_reserve_per_decode() <= self.model_runner.model_config.context_len
        return MOST_STEPS if fits else 1

    def _run_turn(
        self,
        batch: ScheduleBatch,
        draft_input: DFlashDraftInputV2,
        most_steps: int,
        on_publish,
    ) -> TurnResult:
        """The chained steps of a turn, as one result."""
        self._keep_lens(batch)
        result = self._turns.run(batch, draft_input.bonus_tokens, most_steps)
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        result.speculative_num_draft_tokens = self.widths.num_nodes
        result.has_trees = self.grows_trees
        result.next_draft_input = self._make_next_draft_input_decode(
            bonus_tokens=result.bonus, new_seq_lens=result.new_seq_lens
        )
        return result

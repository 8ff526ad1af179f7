# SPDX-License-Identifier: Apache-2.0
"""The steps of a turn as launches of captured graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.utils.device_timer import device_timer_ctx

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.speculative.chained.state import TurnState
    from sglang.srt.speculative.chained.step import StepParts

# Kernels are compiled and workspaces made before a capture.
WARM_UPS = 2

# As SGLang names a verify in the metrics of the device's time.
TIMED_AS = ForwardMode.TARGET_VERIFY.name.lower()


class GraphedSteps:
    """Five graph launches a step: three of its own around the draft's and the target's.

    Captured on row 0 of the request table and no tokens, which are nobody's, as
    in SGLang's own captures.

    Args:
        state: of one batch size that both runners have captured a graph for.
        parts: what to capture.
        draft, target: the runners, whose captures are over.
        draft_context: in which the draft's layers are found.
        workspaces: memory that the parts use and others may replace by a larger one.
    """

    uses_graphs = True

    def __init__(
        self,
        state: TurnState,
        parts: StepParts,
        draft: ModelRunner,
        target: ModelRunner,
        draft_context: Callable[[], AbstractContextManager],
        workspaces: Callable[[], list[torch.Tensor]],
    ) -> None:
        self._state, self._parts, self._draft_context = state, parts, draft_context
        self._draft, self._target = draft.decode_cuda_graph_runner, target.decode_cuda_graph_runner
        self._target_model = target
        # What a captured kernel reads or writes must not be freed.
        self._alive: list[Any] = []
        for _ in range(WARM_UPS):
            self._reset()
            self._before_draft()
            self._replay_draft()
            self._before_verify()
            self._replay_target()
            self._after_verify()
        pool = torch.cuda.graph_pool_handle()
        self._opening = _captured(self._before_draft, pool)
        self._middle = _captured(self._before_verify, pool)
        self._closing = _captured(self._after_verify, pool)
        self._alive += workspaces()

    def _reset(self) -> None:
        nobody = torch.zeros_like(self._state.seq_lens)
        self._state.begin(nobody, nobody, nobody)

    def _before_draft(self) -> None:
        batch = self._parts.draft_batch(self._state)
        with self._draft_context():
            self._draft.load_batch(batch)
        self._draft_key = self._draft._replay_graph_key
        self._alive.append(batch)

    def _before_verify(self) -> None:
        batch = self._parts.verify_batch(self._state)
        self._target.load_batch(batch)
        self._target_key = self._target._replay_graph_key
        self._rows = self._target.raw_num_token
        self._alive.append(batch)

    def _after_verify(self) -> None:
        self._parts.accept(self._state, self._output())

    def _replay_draft(self) -> None:
        self._draft.backend.replay(self._draft_key, None)

    def _replay_target(self) -> None:
        self._target_output = self._target.backend.replay(self._target_key, None)

    def _output(self) -> LogitsProcessorOutput:
        """The target graph's output without the rows that pad it."""
        output = self._target_output
        return replace(
            output,
            next_token_logits=output.next_token_logits[: self._rows],
            hidden_states=output.hidden_states[: self._rows],
        )

    def run(self, count: int) -> None:
        """Launch ``count`` steps."""
        for left in range(count, 0, -1):
            self._opening.replay()
            self._replay_draft()
            # The scheduler sets the timer once all is set up.
            with device_timer_ctx(self._target_model.device_timer, TIMED_AS):
                self._middle.replay()
                if left == 1:
                    # From here on nothing of the scheduler's is read.
                    self._target._publish_read_done(in_graph=False)
                self._replay_target()
            self._closing.replay()


def _captured(part: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    # Other threads of the process may call CUDA meanwhile.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        part()
    return graph

# SPDX-License-Identifier: Apache-2.0
"""A turn of the scheduler as a chain of greedy steps that the host does not look into.

Upstream's turn is one step: the scheduler prepares a batch, the worker launches
a draft and a verify with some work of its own around them, and the result is
accounted for. A fast device waits for all that. Here, while a batch stays as it
is, a step is five graph launches and a turn several steps: the two model
graphs that SGLang has captured, and what lies before, between and behind them,
captured by :class:`GraphedSteps`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from sglang.srt.speculative.chained.length import MOST_STEPS, TurnLength
from sglang.srt.speculative.chained.result import TurnResult
from sglang.srt.speculative.chained.state import TurnLayout, TurnState
from sglang.srt.speculative.chained.step import StepParts

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

logger = logging.getLogger(__name__)


class Steps(Protocol):
    """Runs the steps of a turn of one batch size."""

    uses_graphs: bool

    def run(self, count: int) -> None: ...


class Turns:
    """Runs batches that qualify; see :func:`~.eligible.qualifies`.

    Args:
        block_size: B, the most tokens that a step emits.
        max_batch: the most requests of a turn.
        turn_ms: device time that the steps of a turn may take together.
        make_steps: makes what runs the steps that work on a state.
        device: of the state.
    """

    def __init__(
        self,
        *,
        block_size: int,
        max_batch: int,
        turn_ms: float,
        make_steps: Callable[[TurnState], Steps],
        device: torch.device | str,
    ) -> None:
        self.layout = TurnLayout(block_size, MOST_STEPS)
        self._state = TurnState.allocate(self.layout, max_batch, device)
        self._turn_ms = turn_ms
        self._make_steps = make_steps
        self._device = device
        self._prepared: dict[int, tuple[TurnState, Steps, TurnLength]] = {}
        self._clock = _clock_for(device)
        self._turn = 0

    def prepare(self, batch_size: int) -> None:
        """Make ready for batches of this size; captures their graphs on a GPU."""
        state = self._state.views(batch_size)
        self._prepared[batch_size] = state, self._make_steps(state), TurnLength(self._turn_ms)

    def holds(self, batch_size: int) -> bool:
        """Whether batches of this size were prepared."""
        return batch_size in self._prepared

    def run(self, batch: ScheduleBatch, bonus: torch.Tensor, most_steps: int) -> TurnResult:
        """Launch a turn for a batch of a prepared size.

        Args:
            bonus: int64 [bs], the last token of each request.
            most_steps: that the batch has slots for.
        """
        state, steps, length = self._prepared[len(batch.seq_lens)]
        self._clock.report()
        count = min(length.steps, most_steps)
        state.begin(batch.seq_lens, bonus, batch.req_pool_indices)
        if length.wants_time():
            with self._clock.measure(count, length):
                steps.run(count)
        else:
            steps.run(count)
        self._turn += 1
        return TurnResult.of(
            self.layout, state.end(self._turn), count, can_run_cuda_graph=steps.uses_graphs
        )


class EagerSteps:
    """Steps whose launches are made one by one, as on a CPU, and on a GPU to check captured ones."""

    uses_graphs = False

    def __init__(self, state: TurnState, parts: StepParts, draft: Any, target: Any, draft_context: Callable[[], Any]):
        self._state, self._parts = state, parts
        self._draft, self._target, self._draft_context = draft, target, draft_context

    def run(self, count: int) -> None:
        """Launch ``count`` steps."""
        for _ in range(count):
            block = self._parts.draft_batch(self._state)
            with self._draft_context():
                drafted = self._draft.forward(block)
                # A captured draft ends with the choice.
                if not drafted.can_run_graph:
                    self._parts.after_draft(drafted.logits_output.hidden_states)
            verified = self._target.forward(self._parts.verify_batch(self._state))
            self._parts.accept(self._state, verified.logits_output)


class _HostClock:
    """Where a launch is the work itself."""

    def report(self) -> None:
        pass

    def measure(self, count: int, length: TurnLength) -> _HostSpan:
        return _HostSpan(count, length)


class _HostSpan:
    def __init__(self, count: int, length: TurnLength):
        self._count, self._length = count, length

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._length.observe(1e3 * (time.perf_counter() - self._begun) / self._count)


class _DeviceClock:
    """Events around a turn, looked at in a later one and never waited for."""

    def __init__(self) -> None:
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._pending: tuple[int, TurnLength] | None = None

    def report(self) -> None:
        if self._pending is None or not self._end.query():
            return
        count, length = self._pending
        self._pending = None
        length.observe(self._start.elapsed_time(self._end) / count)

    def measure(self, count: int, length: TurnLength) -> _DeviceClock:
        self._next = count, length
        return self

    def __enter__(self) -> None:
        self._start.record()

    def __exit__(self, *_: object) -> None:
        self._end.record()
        self._pending = self._next


def _clock_for(device: torch.device | str) -> _HostClock | _DeviceClock:
    return _DeviceClock() if torch.device(device).type == "cuda" else _HostClock()

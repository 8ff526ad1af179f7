# SPDX-License-Identifier: Apache-2.0
"""A step as parts that a turn runs one after the other, as they are or from captured graphs.

All inputs of a step lie in the turn's state, so a part reads nothing of the
scheduler's but the request table, and the same part can be captured once and
replayed for every step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from sglang.srt.speculative.chained.state import TurnState

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class StepParts(ABC):
    """What one algorithm does before, between and behind the forwards of its draft and its target."""

    @abstractmethod
    def draft_batch(self, state: TurnState) -> ForwardBatch:
        """The draft's block behind ``state.seq_lens``."""

    @abstractmethod
    def after_draft(self, hidden_states: torch.Tensor) -> None:
        """Choose candidates from the draft's states; a captured draft has done so in its graph."""

    @abstractmethod
    def verify_batch(self, state: TurnState) -> ForwardBatch:
        """What the target is to verify."""

    @abstractmethod
    def accept(self, state: TurnState, output: LogitsProcessorOutput) -> None:
        """Accept greedily, commit, and advance ``state``."""

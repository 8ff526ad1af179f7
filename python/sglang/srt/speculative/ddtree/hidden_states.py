# SPDX-License-Identifier: Apache-2.0
"""Hidden states for requests that ask for them.

During speculation the target's ``hidden_states`` carry the drafter's features;
the last layer's, which a request wants, are kept beside them on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor, LogitsProcessorOutput
from sglang.srt.model_executor.forward_batch_info import (
    get_server_return_hidden_states_mode,
)

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch


def keep_last_layer(processor: LogitsProcessor | None) -> None:
    """Make the target keep its last layer's states; before its graphs are captured.

    Raises:
        ValueError: the target has no logits processor of its own to ask.
    """
    if not get_server_return_hidden_states_mode().need_capture():
        return
    if processor is None:
        raise ValueError(
            "DDTREE cannot return hidden states of this target: it has several logits "
            "processors. Drop --enable-return-hidden-states / --return-hidden-states-mode."
        )
    processor.keep_last_hidden_states = True


def only_logits_processor(model: torch.nn.Module) -> LogitsProcessor | None:
    """The logits processor of a model, or None where it has several, as a multimodal one may."""
    found = [module for module in model.modules() if isinstance(module, LogitsProcessor)]
    return found[0] if len(found) == 1 else None


def return_prefill_states(
    batch: ScheduleBatch, output: LogitsProcessorOutput | None
) -> None:
    """Give a prefill's result the rows that its consumer reads: every prompt
    token's, or in ``last`` mode the last one's of each request."""
    if output is None:
        return
    states, output.last_hidden_states = output.last_hidden_states, None
    if not batch.return_hidden_states or states is None:
        return
    mode = max(batch.return_hidden_states_mode, get_server_return_hidden_states_mode())
    if mode.is_last():
        ends = torch.tensor(batch.extend_lens).cumsum(0) - 1
        output.hidden_states = states[ends.to(states.device, non_blocking=True)]
    else:
        # A captured prefill's lie in the graph's memory, which the next one writes
        # without waiting for their copy to the host.
        output.hidden_states = states.clone()


def return_path_states(
    batch: ScheduleBatch, output: LogitsProcessorOutput, rows: torch.Tensor
) -> None:
    """Give a verify's result one row an emitted token: its node's, [B * C, hidden].

    Args:
        rows: int64 [B * C], the verified rows of the accepted paths.
    """
    states, output.last_hidden_states = output.last_hidden_states, None
    output.hidden_states = (
        states[rows] if batch.return_hidden_states and states is not None else None
    )

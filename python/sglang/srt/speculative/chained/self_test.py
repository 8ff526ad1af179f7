# SPDX-License-Identifier: Apache-2.0
"""Start-up check that steps from captured graphs emit what steps launched one by one emit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.speculative.chained.length import MOST_STEPS

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.speculative.chained.state import TurnState
    from sglang.srt.speculative.chained.turn import Steps

FIRST_TOKEN = 11


def compare_steps(
    runner: ModelRunner, state: TurnState, captured: Steps, single: Steps, *, most_keys: int
) -> None:
    """Run a turn of one request twice, before any request, and compare the tokens.

    It uses what no request owns yet: the table's padding row and the last slots of the pool.

    Args:
        runner: of the target.
        state: of batch size 1; both kinds of steps work on it.
        most_keys: tokens that a turn may commit, and a window.

    Raises:
        RuntimeError: they differ.
    """
    table, allocator = runner.req_to_token_pool.req_to_token, runner.token_to_kv_pool_allocator
    page = allocator.page_size
    first = (allocator.size + page - most_keys) // page * page
    table[0, :most_keys] = torch.arange(first, first + most_keys, device=table.device).to(table.dtype)
    nobody = torch.zeros_like(state.seq_lens)
    emitted = []
    for steps in (captured, single):
        state.begin(nobody, nobody + FIRST_TOKEN % runner.model_config.vocab_size, nobody)
        steps.run(MOST_STEPS)
        rows = state.end(0).rows
        lens = rows[0, state.layout.lens].tolist()
        emitted.append((lens, rows[0, state.layout.tokens][: sum(lens)].tolist()))
    table[0, :most_keys] = 0
    if emitted[0] != emitted[1]:
        raise RuntimeError(f"captured steps emit {emitted[0]}, the same steps one by one {emitted[1]}")

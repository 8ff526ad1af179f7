# SPDX-License-Identifier: Apache-2.0
"""KV slots of a turn of several steps."""

from __future__ import annotations

from sglang.srt.layers.attention.ddtree_sm120_backend import BACKEND_NAME
from sglang.srt.mem_cache.allocation_sizing import get_alloc_len_per_decode
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.chained.length import MOST_STEPS
from sglang.srt.speculative.chained.turn_time import decode_backend, turn_ms_in_force


def reserve_of_turns() -> int:
    """Slots of a request between two reservations; 0 where steps are not chained, and SGLang's two windows are enough.

    When a turn starts, the host does not know of up to K * B tokens that the
    turn before has committed. Its own steps commit as many but for the last,
    which writes a window.
    """
    spec = get_spec()
    block_size = {
        "DFLASH": spec.speculative_num_draft_tokens,
        "DDTREE": spec.speculative_dflash_block_size,
    }.get(spec.speculative_algorithm)
    if not block_size or turn_ms_in_force() <= 0 or decode_backend() != BACKEND_NAME:
        return 0
    return 2 * get_alloc_len_per_decode() + 2 * (MOST_STEPS - 1) * block_size

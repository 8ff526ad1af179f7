# SPDX-License-Identifier: Apache-2.0
"""``--speculative-turn-ms`` as it is in force."""

from __future__ import annotations

from sglang.srt.layers.attention.ddtree_sm120_backend import BACKEND_NAME
from sglang.srt.runtime_context import get_context, get_device, get_exec, get_spec

# Device time that hides the scheduler's own turn, about 1 ms on the hosts that were measured, and is short to wait for.
DEFAULT_MS = 3.0


def turn_ms_in_force() -> float:
    """Milliseconds of the device that a turn's steps may take together; 0 for one step a turn."""
    return resolve_turn_ms(get_spec().speculative_turn_ms, decode_backend(), get_device().device)


def decode_backend() -> str:
    """The attention backend that decodes and verifies."""
    kernel = get_exec().kernel
    return kernel.decode_attention_backend or kernel.attention_backend


def stay_at_one_step() -> None:
    """Whatever was asked for, turns have one step from here on, and no slots are kept ahead for more.

    Only before the first turn: the slots of a turn of several steps must still be there when the next one is prepared.
    """
    get_context().override("chained.stay_at_one_step", speculative_turn_ms=0.0)


def resolve_turn_ms(asked: float | None, backend: str, device: str) -> float:
    """What was asked for, or else the default of where a launch costs more than the step: a GPU with our backend."""
    if asked is not None:
        return asked
    return DEFAULT_MS if device == "cuda" and backend == BACKEND_NAME else 0.0

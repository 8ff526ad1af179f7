# SPDX-License-Identifier: Apache-2.0
"""How many steps a turn of the scheduler launches.

A turn costs the host the same whatever it launches. Where the device takes
longer than that, more steps gain nothing and make new requests wait; so a turn
gets as many steps as the device runs in a short time, which is one for a large
model and several for a small one.
"""

from __future__ import annotations

# No request waits for more steps than this, however fast they are.
MOST_STEPS = 4

# The device's time changes with the context, slowly.
MEASURE_EVERY = 16


class TurnLength:
    """Number of steps from what a step was measured to take.

    Args:
        turn_ms: device time that a turn may take; a turn of one step may take more.
    """

    def __init__(self, turn_ms: float) -> None:
        self._turn_ms = turn_ms
        self._steps = 1
        self._until_measured = 1

    @property
    def steps(self) -> int:
        """Of the next turn."""
        return self._steps

    def wants_time(self) -> bool:
        """Count a turn; whether the time of this one is wanted."""
        self._until_measured -= 1
        if self._until_measured > 0:
            return False
        self._until_measured = MEASURE_EVERY
        return True

    def observe(self, step_ms: float) -> None:
        """Take note of the device time of a step."""
        fitting = self._turn_ms / max(step_ms, 1e-6)
        self._steps = max(1, min(MOST_STEPS, int(fitting)))

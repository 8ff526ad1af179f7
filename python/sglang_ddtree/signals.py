# SPDX-License-Identifier: Apache-2.0
"""Signals that ask to stop: they interrupt the way forward once, and never the way back."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from sglang_ddtree.errors import Interrupted

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """While entered, the first signal raises Interrupted; later ones, and all after ``shield``, are only answered."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._shielded = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._handle) for number in STOPPING}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def shield(self) -> None:
        """Raise nothing from here on."""
        while not self._shielded:
            try:
                self._shielded = True
            except Interrupted:  # the one that came just before
                continue

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._shielded:
            self._say(f"{name}: the service is being brought back first")
            return
        self._shielded = True
        raise Interrupted(f"stopped by {name}")

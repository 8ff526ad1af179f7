# SPDX-License-Identifier: Apache-2.0
"""Signals that ask to stop: they interrupt the way forward once, and never the way back."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        self._shielded = True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._shielded:
            self._say(f"{name}: first the service is brought into a state that is known")
            return
        self._shielded = True
        raise Interrupted(f"stopped by {name}")


@contextmanager
def held() -> Iterator[Callable[[], None]]:
    """Keep signals back while an exception would lose something; what is yielded lets them through again."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _frame: came.append(number)) for number in STOPPING}

    def release() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        while came:
            signal.raise_signal(came.pop(0))

    try:
        yield release
    finally:
        release()

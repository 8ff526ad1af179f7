# SPDX-License-Identifier: Apache-2.0
"""What is said while it goes on, and the report at the end.

A terminal that hangs up or a pipe whose reader has left must not keep the service from being brought back, so what
cannot be written is dropped: the record has it.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TextIO

_WIDTH = 110
_EVERY_SECONDS = 15


class Progress:
    """One line on standard error: on a terminal it is rewritten, elsewhere printed when it changes and every 15 s."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last = ""
        self._printed = 0.0
        self._open = False

    def show(self, text: str) -> None:
        """Show what goes on."""
        now = time.monotonic()
        line = f"[{now - self._began:4.0f} s] {text}"
        if sys.stderr.isatty():
            _write(sys.stderr, f"\r{line[:_WIDTH]:<{_WIDTH}}")
            self._open = True
        elif text != self._last or now - self._printed >= _EVERY_SECONDS:
            _write(sys.stderr, f"{line}\n")
            self._printed = now
        self._last = text

    def say(self, text: str) -> None:
        """A line that stays."""
        self._end()
        _write(sys.stderr, f"{text}\n")

    def tell(self, text: str) -> None:
        """The result, on standard output."""
        self._end()
        _write(sys.stdout, f"{text}\n")

    def _end(self) -> None:
        """Leave the present line standing."""
        if self._open:
            _write(sys.stderr, "\n")
            self._open = False


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        # What is left in its buffer would be tried again, and fail again, when the process ends.
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)

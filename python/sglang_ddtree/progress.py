# SPDX-License-Identifier: Apache-2.0
"""One line on standard error that says how far it has come."""

from __future__ import annotations

import sys
import time

_WIDTH = 110
_EVERY_SECONDS = 15


class Progress:
    """On a terminal the line is rewritten in place; elsewhere it is printed when it changes and every 15 s."""

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
            sys.stderr.write(f"\r{line[:_WIDTH]:<{_WIDTH}}")
            self._open = True
        elif text != self._last or now - self._printed >= _EVERY_SECONDS:
            sys.stderr.write(line + "\n")
            self._printed = now
        self._last = text
        sys.stderr.flush()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.end()
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the present line standing."""
        if self._open:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._open = False

# SPDX-License-Identifier: Apache-2.0
"""One line that says how far the start has come."""

from __future__ import annotations

import sys
import time

_WIDTH = 100
_EVERY_SECONDS = 10


class Progress:
    """Shows the seconds gone and the present step.

    On a terminal the line is rewritten in place; elsewhere a new line is printed
    when the step changes and every ten seconds.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._step = ""
        self._printed = -float(_EVERY_SECONDS)

    def show(self, step: str) -> None:
        """Show ``step``."""
        seconds = time.monotonic() - self._began
        line = f"[{seconds:4.0f} s] {step}"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{line[:_WIDTH]:<{_WIDTH}}")
        elif step != self._step or seconds - self._printed >= _EVERY_SECONDS:
            sys.stderr.write(line + "\n")
            self._printed = seconds
        self._step = step
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line standing."""
        if sys.stderr.isatty() and self._step:
            sys.stderr.write("\n")
            sys.stderr.flush()


# What the server's log says when a step begins.
_STEPS = (
    ("The server is fired up", "ready"),
    ("Uvicorn running", "warming up"),
    ("DFLASH draft runner", "preparing the tokenizer and the HTTP server"),
    ("Load weight end", "allocating the KV cache"),
    ("Load weight begin", "loading weights"),
    ("server_args=", "starting the scheduler"),
)


def step_of(log: str) -> str:
    """The latest step that a server's log tells of."""
    latest = max(_STEPS, key=lambda step: log.rfind(step[0]))
    return latest[1] if latest[0] in log else "importing libraries"

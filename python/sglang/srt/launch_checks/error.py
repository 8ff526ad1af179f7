# SPDX-License-Identifier: Apache-2.0
"""The error of a refused launch, and how a command line shows it."""

from __future__ import annotations

import sys
from types import TracebackType


class LaunchError(ValueError):
    """The launch as asked for cannot work. The message is meant for the user."""


def report_launch_errors() -> None:
    """Show an uncaught LaunchError as one line, as argparse shows its own.

    Every other exception keeps the hook that was there. The exit status stays 1.
    """
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, LaunchError):
            print(f"sglang serve: error: {error}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    sys.excepthook = hook

# SPDX-License-Identifier: Apache-2.0
"""``sglang-ddtree COMMAND``: cutover, status, rollback, health."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_ddtree.commands import cutover, health, rollback, status
from sglang_ddtree.commands.common import DEFAULT_UNIT
from sglang_ddtree.errors import Failed, Interrupted, Refused, ServerError
from sglang_ddtree.journal import default_folder
from sglang_ddtree.judge import Limits
from sglang_ddtree.settings import AUTO, LIVE, MIN_SPEED_RATIO, MODES, RESTART

URL = "http://127.0.0.1:30000"

EXIT_STATUSES = (
    "Exit status: 0 done; 1 it failed and the service is back in its old mode; 2 refused, nothing was changed; "
    "3 it failed and the service could not be brought back; 130 interrupted, and back."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except (Refused, ServerError) as error:
        print(f"sglang-ddtree: {error}", file=sys.stderr)
        return 2
    except Failed as error:
        print(f"sglang-ddtree: {error}", file=sys.stderr)
        return 1
    except (Interrupted, KeyboardInterrupt) as error:
        print(f"sglang-ddtree: {error or 'interrupted'}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def parser() -> argparse.ArgumentParser:
    """The command line; the documentation's page of flags is checked against it."""
    root = argparse.ArgumentParser(prog="sglang-ddtree", description=__doc__, epilog=EXIT_STATUSES)
    commands = root.add_subparsers(required=True)
    _add_cutover(commands)

    shown = commands.add_parser("status", help="the service's mode, the comparison so far, and the last cutover")
    _add_server(shown)
    _add_state(shown)
    shown.add_argument("--json", action="store_true", help="machine-readable")
    shown.set_defaults(run=status.run)

    back = commands.add_parser("rollback", help="undo the last cutover, also one that was killed", epilog=EXIT_STATUSES)
    _add_server(back)
    _add_state(back)
    _add_restart(back)
    back.add_argument("--forget", action="store_true", help="only note that the last cutover needs no rollback")
    back.add_argument("--yes", action="store_true", help="do not ask")
    back.set_defaults(run=rollback.run)

    healthy = commands.add_parser("health", help="exit status 0 if the server is healthy; for container health checks")
    _add_server(healthy)
    healthy.set_defaults(run=health.run)
    return root


def _count(text: str) -> int:
    if not text.isdecimal() or (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return number


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more")
    return number


def _url(text: str) -> str:
    if not re.match(r"https?://[^/]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no address of a server, such as {URL} (or SGLANG_DDTREE_URL)")
    return text


def _add_cutover(commands: Any) -> None:
    cut = commands.add_parser(
        "cutover", help="switch the service to a mode, and back if it does worse", epilog=EXIT_STATUSES
    )
    cut.add_argument("--to", required=True, choices=MODES, help="the mode, see docs/verify-switch.md")
    _add_server(cut)
    _add_state(cut)
    _add_restart(cut)
    cut.add_argument(
        "--environment-file",
        type=Path,
        metavar="FILE",
        help="what the service's environment comes from (default: the unit's)",
    )
    cut.add_argument(
        "--method",
        choices=(AUTO, LIVE, RESTART),
        default=AUTO,
        help="live: switch the running server; restart: its environment and a restart (default: live where it can)",
    )
    cut.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    cut.add_argument("--yes", action="store_true", help="do not ask")

    measured = cut.add_argument_group("what is measured")
    measured.add_argument(
        "--prompts", type=_count, choices=range(1, 9), default=8, metavar="N", help="fixed prompts, 1 to 8 (default: 8)"
    )
    measured.add_argument("--tokens", type=_count, default=64, metavar="N", help="tokens an answer (default: 64)")
    measured.add_argument("--repeats", type=_count, default=3, metavar="N", help="timed answers a prompt (default: 3)")
    measured.add_argument(
        "--answer-timeout", type=_number, default=600, metavar="SECONDS", help="for one answer (default: 600)"
    )
    measured.add_argument(
        "--watch",
        type=_number,
        default=0,
        metavar="SECONDS",
        help="let `validate` compare the service's own traffic for this long before it is judged (default: 0)",
    )

    default = Limits()
    limits = cut.add_argument_group("limits; beyond one of them the service goes back")
    limits.add_argument(
        "--tie-nats",
        type=_number,
        default=default.tie_nats,
        metavar="X",
        help=f"how close a rival of a token counts as a tie, in log-probability (default: {default.tie_nats})",
    )
    limits.add_argument(
        "--max-diverged",
        type=_number,
        default=default.max_diverged,
        metavar="X",
        help=f"share of the answers that may part at such ties (default: {default.max_diverged})",
    )
    limits.add_argument(
        "--min-speed-ratio",
        type=_number,
        metavar="X",
        help=f"speed after over before (default: {MIN_SPEED_RATIO['on']}, for validate {MIN_SPEED_RATIO['validate']})",
    )
    limits.add_argument(
        "--max-ulp",
        type=_number,
        default=default.max_ulp,
        metavar="X",
        help=f"largest error in validate (default: {default.max_ulp})",
    )
    limits.add_argument(
        "--max-mean-ulp",
        type=_number,
        default=default.max_mean_ulp,
        metavar="X",
        help=f"mean error in validate (default: {default.max_mean_ulp})",
    )
    limits.add_argument(
        "--max-beyond-2-ulp",
        type=_number,
        default=default.max_beyond_2_ulp,
        metavar="X",
        help=f"share of the rows with an error above 2 (default: {default.max_beyond_2_ulp})",
    )
    cut.set_defaults(run=cutover.run)


def _add_server(command: argparse.ArgumentParser) -> None:
    url = os.environ.get("SGLANG_DDTREE_URL", URL)
    command.add_argument("--url", type=_url, default=url, help=f"the server (SGLANG_DDTREE_URL, else {URL})")
    command.add_argument(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help="holds the server's --admin-api-key (or SGLANG_DDTREE_ADMIN_KEY)",
    )
    command.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="holds the server's --api-key (or SGLANG_DDTREE_API_KEY)"
    )


def _add_state(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--state-dir",
        type=Path,
        default=default_folder(),
        metavar="DIR",
        help=f"the records (default: {default_folder()})",
    )


def _add_restart(command: argparse.ArgumentParser) -> None:
    how = command.add_mutually_exclusive_group()
    how.add_argument("--unit", metavar="NAME", help=f"systemd unit to restart (default: {DEFAULT_UNIT})")
    how.add_argument(
        "--restart-command",
        metavar="COMMAND",
        help="restarts a service without systemd; must return once it has started it",
    )
    command.add_argument(
        "--restart-timeout", type=_number, default=300, metavar="SECONDS", help="for either to return (default: 300)"
    )
    command.add_argument(
        "--health-timeout",
        type=_number,
        default=2700,
        metavar="SECONDS",
        help="for the service to be healthy after a restart (default: 2700)",
    )
    command.add_argument("--poll", type=_number, default=1, metavar="SECONDS", help="between two looks (default: 1)")
    command.add_argument(
        "--settle",
        type=_number,
        default=30,
        metavar="SECONDS",
        help="how long a healthy server may show another mode after a restart, as the old one ends (default: 30)",
    )

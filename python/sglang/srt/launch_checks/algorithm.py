# SPDX-License-Identifier: Apache-2.0
"""Is there such a speculative algorithm, and does it read what is set for it?"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from sglang.srt.launch_checks.error import LaunchError

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

_OF_DDTREE = (
    "speculative_ddtree_budget",
    "speculative_ddtree_topk",
    "speculative_ddtree_no_spine",
)


def check_algorithm(server_args: ServerArgs) -> None:
    """Refuse a name that no algorithm, alias or plugin has. Reads raw arguments."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    name = server_args.speculative_algorithm
    try:
        SpeculativeAlgorithm.from_string(name)
    except ValueError as error:
        known = ", ".join(sorted(member.name for member in SpeculativeAlgorithm))
        raise LaunchError(
            f"--speculative-algorithm {name}: there is no such algorithm. Built in are {known}."
        ) from error


def check_algorithm_flags(server_args: ServerArgs) -> None:
    """Refuse or tell what the algorithm would not read. Reads raw arguments of a known algorithm."""
    from sglang.srt.arg_groups.fields.spec import Spec
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    algorithm = SpeculativeAlgorithm.from_string(server_args.speculative_algorithm)
    turn_ms = server_args.speculative_turn_ms
    if turn_ms is not None and (not math.isfinite(turn_ms) or turn_ms < 0):
        raise LaunchError(
            f"--speculative-turn-ms must be a number of milliseconds, or 0 for one step a turn; got {turn_ms}."
        )
    if turn_ms and algorithm not in (SpeculativeAlgorithm.DFLASH, SpeculativeAlgorithm.DDTREE):
        raise LaunchError(
            "--speculative-turn-ms: only DFLASH and DDTREE run several steps a turn of the scheduler. "
            f"Leave it out with --speculative-algorithm {server_args.speculative_algorithm}."
        )
    if algorithm == SpeculativeAlgorithm.DDTREE:
        return
    defaults = Spec()
    for name in _OF_DDTREE:
        if getattr(server_args, name) != getattr(defaults, name):
            logger.warning(
                "--%s has no effect: the algorithm is %s, not DDTREE.",
                name.replace("_", "-"),
                server_args.speculative_algorithm,
            )

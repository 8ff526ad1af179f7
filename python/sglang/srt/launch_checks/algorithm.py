# SPDX-License-Identifier: Apache-2.0
"""Is there such a speculative algorithm?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.launch_checks.error import LaunchError

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs


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

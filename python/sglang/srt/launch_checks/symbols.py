# SPDX-License-Identifier: Apache-2.0
"""Is what is installed the upstream that this fork was made for?"""

from __future__ import annotations

import functools
import logging
from pathlib import Path

import sglang
from sglang._fork import intact
from sglang.srt.launch_checks.error import LaunchError

logger = logging.getLogger(__name__)


@functools.cache
def check_symbols() -> None:
    """Refuse to start over an upstream that lacks what the fork uses, or has it with another signature.

    That happens when another release, or single files of one, were installed over the fork.
    """
    package = Path(sglang.__file__).parent
    try:
        result = intact.examine(package)
    except (OSError, ValueError, KeyError) as error:
        raise LaunchError(f"this sglang-ddtree is incomplete: {error}. Install it again.") from error
    if result.problems:
        raise LaunchError(
            f"{package} is not what this sglang-ddtree was made of; was upstream installed over it? "
            f"Install the fork again, into an environment without upstream's sglang.\n{intact.as_text(result.problems)}"
        )
    if result.changed:
        logger.warning(
            "Files of upstream differ from those that sglang-ddtree was made of, but have what it uses: %s.",
            ", ".join(result.changed),
        )

# SPDX-License-Identifier: Apache-2.0
"""Checks of a launch that would otherwise fail late, unclearly, or not at all.

Each raises :class:`LaunchError`, whose message names the flag and the remedy. They
run in the launching process before any other process is started.
"""

from sglang.srt.launch_checks.algorithm import check_algorithm, check_algorithm_flags
from sglang.srt.launch_checks.error import LaunchError, report_launch_errors
from sglang.srt.launch_checks.machine import check_machine
from sglang.srt.launch_checks.model_pair import check_model_pair
from sglang.srt.launch_checks.model_paths import check_model_paths
from sglang.srt.launch_checks.port import check_port
from sglang.srt.launch_checks.symbols import check_symbols

__all__ = [
    "LaunchError",
    "check_algorithm",
    "check_algorithm_flags",
    "check_machine",
    "check_model_pair",
    "check_model_paths",
    "check_port",
    "check_symbols",
    "report_launch_errors",
]

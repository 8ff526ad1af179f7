# SPDX-License-Identifier: Apache-2.0
"""What a cutover is asked to do, apart from how it does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sglang_ddtree.judge import Limits

MODES = ("off", "validate", "on")
AUTO, LIVE, RESTART = "auto", "live", "restart"

# `validate` runs both kernels, so it is slower by what the other one costs.
MIN_SPEED_RATIO = {"off": 0.9, "validate": 0.2, "on": 0.9}


@dataclass(frozen=True)
class Settings:
    """Options of ``sglang-ddtree cutover``.

    Attributes:
        target: the mode to switch to.
        method: ``auto`` takes the live switch where the server offers it.
        environment_file: the file that the service's environment comes from; kept in step with the live mode.
        prompts, tokens, repeats: how many of the fixed prompts, tokens of each answer, timed answers a prompt.
        answer_seconds: how long an answer may take.
        watch_seconds: how long ``validate`` is left in force for the service's own traffic before it is judged.
        health_seconds: how long the service may take to come back after a restart.
        poll_seconds: between two looks at it.
        settle_seconds: how long a healthy server may show another mode (the old process, still ending).
    """

    target: str
    method: str = AUTO
    environment_file: Path | None = None
    prompts: int = 8
    tokens: int = 64
    repeats: int = 3
    answer_seconds: float = 600.0
    watch_seconds: float = 0.0
    health_seconds: float = 2700.0
    poll_seconds: float = 1.0
    settle_seconds: float = 30.0
    limits: Limits = field(default_factory=Limits)

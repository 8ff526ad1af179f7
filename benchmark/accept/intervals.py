# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals: a bootstrap over prompts, since the steps of one prompt hang together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_DRAWS = 10_000
_LEVEL = 95


def accept_length(steps: Sequence[Sequence[int]]) -> tuple[float, float, float]:
    """Tokens a step over all prompts, and the ends of its 95 % interval.

    Args:
        steps: for each prompt, the accepted drafts of each step.
    """
    mean, draws = _bootstrap(steps)
    return mean, *_ends(draws)


def difference(steps: Sequence[Sequence[int]], base: Sequence[Sequence[int]]) -> tuple[float, float, float]:
    """How many more tokens a step than ``base`` on the same prompts, and the ends of its 95 % interval."""
    mean, draws = _bootstrap(steps)
    base_mean, base_draws = _bootstrap(base)
    return mean - base_mean, *_ends(draws - base_draws)


def _bootstrap(steps: Sequence[Sequence[int]]) -> tuple[float, np.ndarray]:
    tokens = np.array([sum(each) + len(each) for each in steps], dtype=float)
    count = np.array([len(each) for each in steps], dtype=float)
    # One seed for all: two settings are drawn with the same prompts, so their difference is a paired one.
    chosen = np.random.default_rng(0).integers(len(steps), size=(_DRAWS, len(steps)))
    return float(tokens.sum() / count.sum()), tokens[chosen].sum(1) / count[chosen].sum(1)


def _ends(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(draws, [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2])
    return float(low), float(high)

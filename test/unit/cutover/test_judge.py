# SPDX-License-Identifier: Apache-2.0
"""What counts as the same answer, as slow, and as a comparison within limits."""

from __future__ import annotations

import pytest
from sglang_ddtree.judge import Limits, judge, judge_validation
from sglang_ddtree.probe import Measurement
from sglang_ddtree.server import Answer

TOPS = [{1: -0.1, 2: -0.3, 3: -2.0}] * 4


def measured(*answers: list[int], seconds: float = 1.0, tops: list[dict[int, float]] | None = None) -> Measurement:
    """A measurement with these answers."""
    tops = TOPS if tops is None else tops
    return Measurement(
        {n: Answer(ids, 1.0, tops) for n, ids in enumerate(answers)}, dict.fromkeys(range(len(answers)), seconds)
    )


OLD = measured([1, 1, 1, 1], [1, 1, 1, 1])


@pytest.mark.parametrize(
    ("answers", "reasons"),
    [
        (([1, 1, 1, 1], [1, 1, 1, 1]), 0),
        (([1, 2, 9, 9], [1, 1, 1, 1]), 0),  # a tie, and what follows from it
        (([1, 3, 1, 1], [1, 1, 1, 1]), 1),  # known, but 1.9 nats away
        (([1, 7, 1, 1], [1, 1, 1, 1]), 1),  # not among the likely ones
        (([1, 1, 1], [1, 1, 1, 1]), 1),  # ends early
        (([1, 1, 1, 1],), 1),  # refused
        (([1, 2, 1, 1], [1, 1, 1, 2]), 1),  # too many ties
    ],
)
def test_answers(answers, reasons):
    verdict = judge(OLD, measured(*answers), Limits(min_speed_ratio=0))
    assert len(verdict.reasons) == reasons and verdict.good == (not reasons)


def test_without_alternatives_every_difference_counts():
    bare = measured([1, 1, 1, 1], tops=[])
    assert not judge(bare, measured([1, 2, 1, 1]), Limits(min_speed_ratio=0)).good


@pytest.mark.parametrize(("seconds", "good"), [(1.0, True), (1.11, True), (1.12, False), (0.5, True)])
def test_speed(seconds, good):
    verdict = judge(OLD, measured([1] * 4, [1] * 4, seconds=seconds), Limits(min_speed_ratio=0.9))
    assert verdict.good == good
    assert verdict.found[-1].startswith("4.0 tokens/s before, ")


def test_every_rank_is_judged():
    good = {"steps": 1, "rows": 10, "max_ulp": 1.0, "mean_ulp": 0.1, "rows_beyond_2_ulp": 0, "rows_not_finite": 0}
    ranks = [{"validation": good}, {"validation": {**good, "max_ulp": 33.0}}, {"validation": None}]
    verdict = judge_validation(ranks, Limits())
    assert [reason.partition(":")[0] for reason in verdict.reasons] == ["rank 1", "rank 2"]

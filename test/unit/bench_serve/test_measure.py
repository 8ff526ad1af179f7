# SPDX-License-Identifier: Apache-2.0
"""Times of a stream's chunks become times of steps."""

import pytest

from benchmark.serve.measure import WARM_STEPS, Chunk, cut_into_samples


def stream(steps: int, *, ms: float, tokens_a_step: int, merged: int = 0) -> list[Chunk]:
    """A prefill's chunk and one a step; the first steps are slow, as warming up is."""
    times, now = [10.0], 10.0
    for step in range(steps):
        now += 1e-3 * ms * (5 if step < WARM_STEPS else 1)
        times.append(now)
    last = len(times) - 1
    return [Chunk(t, 1 + i * tokens_a_step, steps + merged if i == last else 0) for i, t in enumerate(times)]


def test_the_median_is_that_of_warm_steps():
    times = cut_into_samples(stream(8 + 4 * 12, ms=2.0, tokens_a_step=3), steps_a_sample=4)
    assert len(times.ms_per_step) == 12
    assert times.median == pytest.approx(2.0)
    assert times.accept_length == pytest.approx(3.0)
    assert times.tokens_per_second == pytest.approx(1500.0)
    assert times.steps == 48


def test_a_stream_whose_steps_came_merged_is_refused():
    with pytest.raises(RuntimeError, match="merged"):
        cut_into_samples(stream(100, ms=2.0, tokens_a_step=1, merged=5), steps_a_sample=4)

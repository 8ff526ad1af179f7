# SPDX-License-Identifier: Apache-2.0
"""Time of a verify step, seen from outside: the arrival of a stream's chunks.

A chunk holds what a turn of the scheduler emitted, which is one step or a few, and
the last chunk says how many steps there were. The clock is the client's, so what is measured is what a user gets, the
host's share of the step included.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import httpx

TIMEOUT = 300

# The overlap scheduler runs a step ahead, and the first chunk follows the prefill.
WARM_CHUNKS = 8
# A sample is long against the jitter of one chunk's arrival.
SAMPLE_CHUNKS, SAMPLE_SECONDS = 4, 0.05
SAMPLE_STEPS = 4
PROBE_TOKENS = 32


@dataclass(frozen=True)
class Chunk:
    """One piece of a stream.

    Attributes:
        seconds: when it came, on this process's clock.
        tokens: tokens generated so far.
        steps: verify steps of the whole request; 0 but in the last chunk.
    """

    seconds: float
    tokens: int
    steps: int


@dataclass(frozen=True)
class StepTimes:
    """Samples of one configuration at one context length.

    Attributes:
        ms_per_step: one number a sample.
        steps: steps that the samples cover together.
        steps_per_chunk: mean number of steps a turn of the scheduler.
        accept_length: tokens a step.
        tokens_per_second: over all samples.
    """

    ms_per_step: list[float]
    steps: int
    steps_per_chunk: float
    accept_length: float
    tokens_per_second: float

    @property
    def median(self) -> float:
        return statistics.median(self.ms_per_step)

    def as_result(self) -> dict[str, Any]:
        low, _, high = statistics.quantiles(self.ms_per_step, n=4)
        return {"median_ms": self.median, "quartiles_ms": [low, high]} | asdict(self)


@dataclass(frozen=True)
class WholeTimes:
    """Samples of one configuration from answers that come in one piece: milliseconds a step, one number an answer."""

    ms_per_step: list[float]

    def as_result(self) -> dict[str, Any]:
        return {"whole_median_ms": statistics.median(self.ms_per_step), "whole_ms_per_step": self.ms_per_step}


def prompt(length: int) -> list[int]:
    """Token ids of a prompt, the same every time and without repetition to learn from."""
    draw = random.Random(length)
    return draw.choices(range(8, 400), k=length)


def stream(url: str, ids: list[int], new_tokens: int) -> Iterator[Chunk]:
    """Generate greedily; closing the iterator aborts the request."""
    body = {
        "input_ids": ids,
        "stream": True,
        "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0.0, "ignore_eos": True},
    }
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=TIMEOUT) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            now = time.perf_counter()
            if line.startswith("data: {"):
                meta = json.loads(line.removeprefix("data: "))["meta_info"]
                yield Chunk(now, meta["completion_tokens"], meta.get("spec_verify_ct", 0))


def cut_into_samples(chunks: list[Chunk], chunks_a_sample: int) -> StepTimes:
    """Samples of a whole stream, its first ``WARM_CHUNKS`` left out; each chunk stands for the mean number of steps."""
    # The first chunk is the prefill's.
    steps_a_chunk = chunks[-1].steps / (len(chunks) - 1)
    marks = chunks[WARM_CHUNKS::chunks_a_sample]
    first, last = marks[0], marks[-1]
    steps_a_sample = steps_a_chunk * chunks_a_sample
    steps = round(steps_a_sample * (len(marks) - 1))
    return StepTimes(
        ms_per_step=[1e3 * (b.seconds - a.seconds) / steps_a_sample for a, b in pairwise(marks)],
        steps=steps,
        steps_per_chunk=steps_a_chunk,
        accept_length=(last.tokens - first.tokens) / steps,
        tokens_per_second=(last.tokens - first.tokens) / (last.seconds - first.seconds),
    )


def measure(url: str, ids: list[int], samples: int, room: int) -> StepTimes:
    """At least ``samples`` samples after ``ids``, which a first request leaves in the radix cache.

    Args:
        room: tokens that may be generated.

    Raises:
        RuntimeError: they are too few for the samples.
    """
    probe = list(stream(url, ids, PROBE_TOKENS))
    longest = max(1, len(probe) // 2)
    chunk_seconds = (probe[-1].seconds - probe[-1 - longest].seconds) / longest
    tokens_a_chunk = (probe[-1].tokens - probe[0].tokens) / (len(probe) - 1)
    chunks_a_sample = max(SAMPLE_CHUNKS, math.ceil(SAMPLE_SECONDS / chunk_seconds))
    needed = WARM_CHUNKS + samples * chunks_a_sample
    new_tokens = math.ceil(1.2 * needed * tokens_a_chunk)
    while new_tokens <= room:
        chunks = list(stream(url, ids, new_tokens))
        if len(chunks) > needed:
            return cut_into_samples(chunks, chunks_a_sample)
        new_tokens *= 2
    raise RuntimeError(f"{room} tokens are too few for {samples} samples of {chunks_a_sample} chunks")


def measure_whole(url: str, ids: list[int], samples: int, streamed: StepTimes) -> WholeTimes:
    """The same without a stream: the scheduler then sends nothing on until the answer is whole.

    From each answer's time that of an answer without any step is taken off.

    Args:
        streamed: of the same prompt; tells how long an answer has to be.
    """
    steps = max(SAMPLE_STEPS, math.ceil(2e3 * SAMPLE_SECONDS / streamed.median))
    new_tokens = 1 + math.ceil(steps * streamed.accept_length)
    without_steps = statistics.median(_answer(url, ids, 1)[0] for _ in range(5))
    times = []
    for _ in range(samples):
        seconds, steps = _answer(url, ids, new_tokens)
        times.append(1e3 * (seconds - without_steps) / steps)
    return WholeTimes(times)


def _answer(url: str, ids: list[int], new_tokens: int) -> tuple[float, int]:
    """Seconds and steps of an answer that is not streamed."""
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0.0, "ignore_eos": True},
    }
    begun = time.perf_counter()
    answer = httpx.post(f"{url}/generate", json=body, timeout=TIMEOUT)
    seconds = time.perf_counter() - begun
    answer.raise_for_status()
    return seconds, answer.json()["meta_info"].get("spec_verify_ct", 0)

# SPDX-License-Identifier: Apache-2.0
"""Captured graphs serve every batch: other sizes, other trees, requests that end or are aborted in between.

The target of a cycle pair leaves no choice to rounding, so every token is known
beforehand, also in bf16. The draft is right in full, in part or not at all.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from gpu_harness.config import MAX_TOTAL_TOKENS, GpuConfig
from gpu_harness.counters import decode_steps
from gpu_harness.requests import Request, abort_after, ask, ask_together
from harness.generate import flush, load, wait_idle
from harness.prompts import all_prompts, walk
from sglang.srt.speculative.chained.length import MOST_STEPS

CONFIGS = [
    GpuConfig("cycle-mla", graph_sizes=(8,)),
    GpuConfig("cycle-mla", graph_sizes=(1, 2, 3, 4, 5, 6, 7, 8)),
    GpuConfig("cycle-mla", "DFLASH", graph_sizes=(8,)),
]
pytestmark = pytest.mark.parametrize("server", CONFIGS, indirect=True, ids=str)


def requests_of(count: int, seed: int, most_tokens: int = 160) -> list[Request]:
    """Requests of all prompts in turn, each with a length of its own."""
    draw, prompts = random.Random(seed), all_prompts()
    return [Request(prompts[i % len(prompts)].ids, draw.randint(1, most_tokens)) for i in range(count)]


def expected(request: Request) -> list[int]:
    return walk(request.ids[-1], request.new_tokens)


def wrong(requests: list[Request], answers: list[list[int]]) -> list[str]:
    return [
        f"after {request.ids[-8:]}: {answer} instead of {expected(request)}"
        for request, answer in zip(requests, answers, strict=True)
        if answer != expected(request)
    ]


@pytest.mark.parametrize("at_once", range(1, 9))
def test_every_batch_up_to_the_captured_one(server, record, at_once):
    before = decode_steps(server)
    requests = requests_of(8 * at_once, seed=at_once)
    answers = ask_together(server, requests, at_once)
    assert not wrong(requests, [answer.ids for answer in answers])
    steps = decode_steps(server) - before
    record(steps_replayed=steps.replayed, steps_eager=steps.eager)
    assert steps.eager == 0
    assert steps.replayed > 0


def test_replays_equal_steps(server, record):
    wait_idle(server)
    before = decode_steps(server)
    requests = requests_of(12, seed=100)
    verifies = sum(ask(server, request).steps for request in requests)
    wait_idle(server)
    steps = decode_steps(server) - before
    record(verifies=verifies, steps_replayed=steps.replayed, steps_eager=steps.eager)
    assert steps.eager == 0
    # The overlap scheduler has launched one more turn when it learns that a request has ended, and the turn in which it
    # ended may have had further steps.
    assert verifies <= steps.replayed <= verifies + len(requests) * (2 * MOST_STEPS - 1)


def test_requests_that_end_in_the_middle_of_a_batch(server):
    requests = [Request(prompt.ids, 1 + 23 * i % 97) for i, prompt in enumerate(all_prompts())] * 4
    answers = ask_together(server, requests, at_once=8)
    assert not wrong(requests, [answer.ids for answer in answers])


def test_aborts_leave_the_others_right_and_no_slot_behind(server):
    flush(server)
    staying = requests_of(24, seed=200, most_tokens=300)
    leaving = [Request(request.ids, 1600) for request in requests_of(24, seed=201)]
    with ThreadPoolExecutor(8) as threads:
        stays = [threads.submit(ask, server, request) for request in staying[:4]]
        gone = []
        for i, request in enumerate(leaving):
            gone.append((request, threads.submit(abort_after, server, request, 1 + i % 5)))
            if 4 + i < len(staying):
                stays.append(threads.submit(ask, server, staying[4 + i]))
        answers = [stay.result().ids for stay in stays]
        for request, aborted in gone:
            seen = aborted.result()
            assert seen == expected(request)[: len(seen)]
    assert not wrong(staying[: len(answers)], answers)
    flush(server)
    now = load(server)
    assert now["num_used_tokens"] == 0
    assert now["max_total_num_tokens"] == MAX_TOTAL_TOKENS

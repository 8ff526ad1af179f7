# SPDX-License-Identifier: Apache-2.0
"""Two ranks on two GPUs: the same tokens as one, and no hang over thousands of steps."""

from __future__ import annotations

import time

import pytest
from gpu_harness.config import GpuConfig
from gpu_harness.counters import decode_steps
from gpu_harness.requests import Request, ask_together
from harness.generate import flush, load
from harness.prompts import all_prompts, walk

STEPS = 2_000
SECONDS = 120


@pytest.mark.parametrize("server", [GpuConfig("cycle-mla", tp=2)], indirect=True, ids=str)
def test_two_ranks_say_what_one_says(server):
    # What one rank says is known beforehand, see test_server_graphs.py.
    requests = [Request(prompt.ids, 100) for prompt in all_prompts()]
    for request, answer in zip(requests, ask_together(server, requests, at_once=8), strict=True):
        assert answer.ids == walk(request.ids[-1], request.new_tokens)


@pytest.mark.parametrize("server", [GpuConfig("random-mla", tp=2)], indirect=True, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_thousands_of_steps_do_not_hang(server, record, temperature):
    before = decode_steps(server)
    deadline = time.monotonic() + SECONDS
    while (steps := decode_steps(server) - before).replayed < STEPS:
        assert time.monotonic() < deadline, f"{steps} in {SECONDS} s"
        requests = [Request(prompt.ids, 200, temperature, ignore_eos=True) for prompt in all_prompts()]
        answers = ask_together(server, requests, at_once=8)
        assert all(len(answer.ids) == 200 for answer in answers)
    record(steps_replayed=steps.replayed, steps_eager=steps.eager)
    assert steps.eager == 0
    flush(server)
    assert load(server)["num_used_tokens"] == 0

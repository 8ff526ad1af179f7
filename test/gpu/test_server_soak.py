# SPDX-License-Identifier: Apache-2.0
"""Thousands of sampled steps: no fault, no step without a graph, no slot lost."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time

import pytest
from gpu_harness.config import MAX_TOTAL_TOKENS, GpuConfig
from gpu_harness.counters import decode_steps
from gpu_harness.requests import Request, abort_after, ask
from harness.generate import flush, load

STEPS = int(os.environ.get("GPU_TEST_SOAK_STEPS", "20000"))
SECONDS = 240


@pytest.mark.parametrize("server", [GpuConfig("trained-mla")], indirect=True, ids=str)
def test_steps_at_temperature_one(server, record):
    flush(server)
    before = decode_steps(server)
    stop = threading.Event()
    faults: list[BaseException] = []
    threads = [threading.Thread(target=_keep_asking, args=(server, i, stop, faults)) for i in range(8)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    deadline = began + SECONDS
    try:
        while not faults and (decode_steps(server) - before).replayed < STEPS:
            assert time.monotonic() < deadline, f"{decode_steps(server) - before} in {SECONDS} s"
            time.sleep(1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not faults
    steps = decode_steps(server) - before
    assert steps.replayed >= STEPS
    assert steps.eager == 0
    record(steps_replayed=steps.replayed, steps_eager=steps.eager, seconds=round(time.monotonic() - began, 1))
    flush(server)
    now = load(server)
    assert now["num_used_tokens"] == 0
    assert now["max_total_num_tokens"] == MAX_TOTAL_TOKENS


def _keep_asking(server, seed: int, stop: threading.Event, faults: list[BaseException]) -> None:
    """Requests one after the other, of all lengths; each seventh is aborted."""
    draw = random.Random(seed)
    try:
        for count in itertools.count():
            if stop.is_set():
                return
            ids = tuple(draw.choices(range(4, 400), k=draw.choice((1, 7, 64, 300))))
            request = Request(ids, draw.randint(1, 500), temperature=1.0, ignore_eos=True)
            if count % 7 == 6:
                abort_after(server, request, draw.randint(1, 9))
            else:
                assert len(ask(server, request).ids) == request.new_tokens
    except BaseException as fault:  # a thread's fault must fail the test
        faults.append(fault)

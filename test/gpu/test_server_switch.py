# SPDX-License-Identifier: Apache-2.0
"""The cutover switch in a server with CUDA graphs: every mode serves the same tokens, also while it is changed.

The target of a cycle pair leaves no choice to rounding, so every token is known beforehand, by either kernel.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from gpu_harness.config import GpuConfig
from gpu_harness.counters import decode_steps
from gpu_harness.requests import Request, ask, ask_together
from harness.generate import REQUEST_SECONDS, wait_idle
from harness.process import Server
from harness.prompts import all_prompts, walk

KEY = "sesame"
OPTIONS = ("--admin-api-key", KEY, "--ddtree-verify", "validate")
CONFIGS = [
    GpuConfig("cycle-mla", graph_sizes=(1, 2, 4, 8), options=OPTIONS),
    GpuConfig("cycle-mla", "DFLASH", graph_sizes=(8,), options=OPTIONS),
    GpuConfig("cycle-mla", None, graph_sizes=(4, 8), options=OPTIONS),
]
pytestmark = pytest.mark.parametrize("server", CONFIGS, indirect=True, ids=str)


def switch(server: Server, mode: str) -> dict:
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{server.url}/ddtree_verify", json={"mode": mode}, headers=headers, timeout=REQUEST_SECONDS)
    assert answer.status_code == 200, answer.text
    return answer.json()["states"][0]


def state(server: Server) -> dict:
    answer = httpx.get(f"{server.url}/server_info", timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    return answer.json()["internal_states"][0]["ddtree_verify"]


def requests_of(count: int, new_tokens: int) -> list[Request]:
    prompts = all_prompts()
    return [Request(prompts[i % len(prompts)].ids, new_tokens) for i in range(count)]


def check(requests: list[Request], answers) -> None:
    for request, answer in zip(requests, answers, strict=True):
        assert answer.ids == walk(request.ids[-1], request.new_tokens), request.ids[-8:]


def test_the_first_mode_counts_from_the_first_request(server, record):
    """First in the file: the server has served nothing but its warm-up."""
    wait_idle(server)
    before = decode_steps(server)
    first = state(server)
    assert first["mode"] == "validate" and first["modes"] == ["off", "validate", "on"] and first["switches"] == 0
    record(memory_bytes=first["memory_bytes"])
    assert set(first["memory_bytes"]["graphs"]) == {"off", "validate", "on"}
    assert first["memory_bytes"]["delegate_buffers"] > 0

    requests = requests_of(16, 60)
    check(requests, ask_together(server, requests, 8))
    wait_idle(server)
    steps, seen = decode_steps(server) - before, state(server)["validation"]
    assert steps.eager == 0 and seen["steps"] - first["validation"]["steps"] == steps.replayed
    record(validation=seen)
    assert seen["rows"] > 0 and seen["rows"] % (3 * 4) == 0, "three layers, four heads"
    assert seen["rows_not_finite"] == 0 and 0 < seen["max_ulp"] < 64 and seen["mean_ulp"] < 0.5


@pytest.mark.parametrize("mode", ["on", "off", "validate"])
def test_every_mode_serves_the_known_tokens_by_graphs(server, mode):
    switch(server, mode)
    before = decode_steps(server)
    requests = requests_of(24, 80)
    check(requests, ask_together(server, requests, 8))
    check(requests[:4], [ask(server, request) for request in requests[:4]])
    wait_idle(server)
    steps = decode_steps(server) - before
    assert steps.eager == 0 and steps.replayed > 0
    if mode == "validate":
        assert state(server)["validation"]["steps"] == steps.replayed


def test_switching_under_load(server, record):
    requests, done = requests_of(64, 200), threading.Event()

    def keep_switching() -> int:
        count = 0
        while not done.wait(0.02):
            for mode in ("off", "on", "validate", "on"):
                switch(server, mode)
                count += 1
        return count

    before = decode_steps(server)
    with ThreadPoolExecutor(1) as thread:
        switching = thread.submit(keep_switching)
        try:
            answers = ask_together(server, requests, 8)
        finally:
            done.set()
        count = switching.result()
    check(requests, answers)
    wait_idle(server)
    assert count >= 8 and (decode_steps(server) - before).eager == 0
    now = state(server)
    record(switches=count, requests=len(requests), state=now)
    assert now["validation"]["rows_not_finite"] == 0

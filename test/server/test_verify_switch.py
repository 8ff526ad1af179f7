# SPDX-License-Identifier: Apache-2.0
"""The cutover switch in a server: who may switch, that nothing changes in what is served, and what is shown."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness.config import ServerConfig
from harness.generate import REQUEST_SECONDS, flush, generate, wait_idle
from harness.process import Server
from harness.prompts import short_prompts

KEY = "sesame"
ADMIN = ("--admin-api-key", KEY)
# A plain server without a key, which other tests start anyway.
OPEN = ServerConfig("random-mla")
TREE = ServerConfig("random-mla", "DDTREE", page_size=16, budget=8, options=ADMIN)
TORCH_ONLY = ServerConfig("random-gqa", "DDTREE", page_size=16, budget=8, options=ADMIN)
TWO_RANKS = ServerConfig("random-mla", "DDTREE", page_size=16, budget=8, options=(*ADMIN, "--tp-size", "2"))
LAYERS, HEADS, NODES = 3, 4, 9
STARTS_IN_VALIDATE = ServerConfig(
    "random-mla", options=(*ADMIN, "--ddtree-verify", "validate", "--ddtree-verify-modes", "off,validate")
)


def servers(*configs: ServerConfig) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", configs, indirect=True, ids=str)


def ask(server: Server, mode: str | None = None, key: str | None = KEY) -> httpx.Response:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    if mode is None:
        return httpx.get(f"{server.url}/ddtree_verify", headers=headers, timeout=REQUEST_SECONDS)
    return httpx.post(f"{server.url}/ddtree_verify", json={"mode": mode}, headers=headers, timeout=REQUEST_SECONDS)


def switch(server: Server, mode: str) -> dict:
    answer = ask(server, mode)
    assert answer.status_code == 200, answer.text
    assert answer.json()["mode"] == mode
    return answer.json()


def state(server: Server) -> dict:
    answer = httpx.get(f"{server.url}/server_info", timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    return answer.json()["internal_states"][0]["ddtree_verify"]


def metric(server: Server, name: str, **labels: str) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=REQUEST_SECONDS).text
    (value,) = (
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(f"sglang:ddtree_verify_{name}{{") and all(f'{k}="{v}"' in line for k, v in labels.items())
    )
    return value


@servers(OPEN)
def test_the_state_is_shown(server):
    """And without an admin key nobody may change it."""
    now = state(server)
    assert (now["mode"], now["modes"], now["validation"]) == ("on", ["on"], None)
    assert now["kernels"] == {"off": "torch", "on": "mla_tree_verify (C++)"}
    answer = ask(server, key=None)
    assert answer.status_code == 200 and answer.json()["states"] == [now]
    refused = ask(server, "off", key=None)
    assert refused.status_code == 400 and "--admin-api-key" in refused.json()["error"]
    assert metric(server, "mode", mode="on") == 1 and metric(server, "mode", mode="off") == 0


@pytest.mark.long
@servers(TREE)
def test_the_key_is_checked(server):
    before = state(server)["switches"]
    for key in (None, "wrong"):
        assert ask(server, "off", key=key).status_code == 401
        assert ask(server, key=key).status_code == 401
    assert state(server)["switches"] == before


def every_mode_serves(server: Server, expected: dict) -> None:
    for mode in ("on", "validate", "off", "on"):
        switch(server, mode)
        for prompt in short_prompts():
            flush(server, KEY)
            assert generate(server, prompt.ids).ids == expected[prompt.name].ids, (mode, prompt.name)


def validate_counts(server: Server) -> None:
    switch(server, "validate")
    prompt, accepts = short_prompts()[0].ids, []
    for _ in range(4):
        flush(server, KEY)
        accepts += generate(server, prompt, new_tokens=100, ignore_eos=True).accepts
    wait_idle(server)
    seen = state(server)["validation"]
    steps, rows = seen["steps"], seen["rows"]
    # The overlap scheduler may have launched a step more when it learns that a request has ended.
    assert sum(accepts) <= steps <= sum(accepts) + 8 and rows == steps * LAYERS * HEADS * NODES
    assert 0 < seen["max_ulp"] < 0.01 and 0 < seen["mean_ulp"] <= seen["max_ulp"]
    assert (seen["rows_beyond_2_ulp"], seen["rows_not_finite"]) == (0, 0)

    switch(server, "on")
    assert metric(server, "steps") == steps and metric(server, "rows") == rows
    assert metric(server, "rows_beyond_2_ulp") == 0 and metric(server, "rows_not_finite") == 0
    assert metric(server, "mode", mode="on") == 1 and metric(server, "mode", mode="validate") == 0
    assert state(server)["validation"]["rows"] == rows, "kept after leaving"
    line = rf"validate, {steps} steps, {rows} rows: error max .* bf16 ulp"
    assert re.search(line, server.log.read_text(errors="replace"))
    assert switch(server, "validate")["states"][0]["validation"]["steps"] == 0, "counted anew"
    switch(server, "on")


def switching_under_load(server: Server, expected: dict) -> None:
    prompts, done = short_prompts(), threading.Event()
    before = state(server)["switches"]

    def serve(worker: int) -> None:
        for prompt in prompts[worker::4] * 2:
            assert generate(server, prompt.ids).ids == expected[prompt.name].ids, prompt.name

    def keep_switching() -> int:
        switched = 0
        while not done.wait(0.05):
            for mode in ("off", "on", "validate", "on"):
                switch(server, mode)
                switched += 1
        return switched

    with ThreadPoolExecutor(5) as threads:
        switching = threads.submit(keep_switching)
        try:
            for served in [threads.submit(serve, worker) for worker in range(4)]:
                served.result()
        finally:
            done.set()
        count = switching.result()
    now = state(server)
    assert count >= 8 and now["switches"] >= before + count - 1
    assert now["validation"]["rows_not_finite"] == 0


@pytest.mark.long
@servers(TREE)
def test_every_mode_serves_the_tokens_of_plain_decoding(server, expected):
    every_mode_serves(server, expected)


@pytest.mark.long
@servers(TREE)
def test_validate_counts_and_shows(server):
    validate_counts(server)


@pytest.mark.long
@servers(TREE)
def test_switching_under_load_changes_no_token(server, expected):
    switching_under_load(server, expected)


@pytest.mark.long
def test_two_ranks_switch_together(models, environ, logs, plain_outputs):
    """A rank that switched a step later would meet the others in no collective, or serve other numbers."""
    expected = plain_outputs(TWO_RANKS.pair)
    # SGLang wants a NUMA node a rank unless it is told where each may run.
    binding = {**environ, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    server = Server(TWO_RANKS.arguments(models[TWO_RANKS.pair]), logs / f"{TWO_RANKS}.log", binding)
    try:
        server.wait_ready()
        every_mode_serves(server, expected)
        validate_counts(server)
        switching_under_load(server, expected)
    finally:
        server.stop()


@pytest.mark.long
@servers(STARTS_IN_VALIDATE)
def test_a_mode_that_was_not_prepared_is_refused(server):
    assert ask(server).json()["states"][0]["modes"] == ["off", "validate"]
    refused = ask(server, "on")
    assert refused.status_code == 400
    assert "--ddtree-verify-modes off,validate,on" in refused.json()["message"]
    assert refused.json()["mode"] == "validate"
    flush(server, KEY)
    generate(server, short_prompts()[0].ids)
    wait_idle(server)
    seen = state(server)["validation"]
    assert seen["steps"] > 0 and seen["rows"] == seen["steps"] * LAYERS * HEADS, "a decode is compared too"


@pytest.mark.long
@servers(TORCH_ONLY)
def test_a_gqa_model_has_one_kernel_on_a_cpu(server):
    now = state(server)
    assert (now["mode"], now["modes"], now["kernels"]) == ("off", ["off"], {"off": "torch"})
    assert "MLA" in now["remark"]
    refused = ask(server, "on")
    assert refused.status_code == 400 and "no kernel" in refused.json()["message"]

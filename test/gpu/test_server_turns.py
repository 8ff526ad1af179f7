# SPDX-License-Identifier: Apache-2.0
"""Several steps a turn on a GPU: the tokens of steps that come one by one, and nothing left behind.

A request with log-probabilities gets steps of its own, launched by the worker; without, it is chained from captured
graphs. Alone on the server both run the same kernels on the same shapes, so they must agree in bf16 too.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import httpx
import pytest
from gpu_harness.config import MAX_TOTAL_TOKENS, GpuConfig
from gpu_harness.requests import Request, abort_after, ask
from harness.config import MODELS
from harness.generate import REQUEST_SECONDS, flush, load
from harness.process import Server
from tokenizers import Tokenizer

from benchmark.accept import prompts
from tools.tiny_models import ensure

PAIR, PROMPTS, NEW_TOKENS = "trained-mla", 16, 200

# The drafts of the trained pairs have heads of 64, which the kernel has; time enough for four steps a turn.
OPTIONS = ("--speculative-draft-attention-backend", "ddtree_sm120", "--speculative-turn-ms", "1000")
CONFIGS = [
    GpuConfig(PAIR, algorithm, graph_sizes=(1, 2, 4, 8), options=OPTIONS) for algorithm in ("DDTREE", "DFLASH")
]
pytestmark = pytest.mark.parametrize("server", CONFIGS, indirect=True, ids=str)


@cache
def texts() -> list[tuple[int, ...]]:
    """Held-out code, docstrings and prose as token ids."""
    tokenizer = Tokenizer.from_file(str(ensure(MODELS, PAIR).target / "tokenizer.json"))
    return [tuple(tokenizer.encode(prompt.text).ids) for prompt in prompts.load()][:PROMPTS]


def one_by_one(server: Server, request: Request) -> list[int]:
    body = {
        "input_ids": list(request.ids),
        "sampling_params": {"max_new_tokens": request.new_tokens, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
    }
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    return answer.json()["output_ids"]


def test_the_server_chains(server):
    info = httpx.get(f"{server.url}/server_info", timeout=REQUEST_SECONDS).json()
    assert info["internal_states"][0]["speculative_turns"] == {"most": 4, "turn_ms": 1000.0}


def test_tokens_are_those_of_steps_one_by_one(server):
    steps = 0
    for ids in texts():
        request = Request(ids, NEW_TOKENS, ignore_eos=True)
        flush(server)
        chained = ask(server, request)
        flush(server)
        assert chained.ids == one_by_one(server, request)
        steps += chained.steps
    assert steps < 0.7 * PROMPTS * NEW_TOKENS  # or hardly a draft was accepted


def test_batches_that_change_leave_no_slot_behind(server):
    flush(server)
    requests = [Request(ids, 1 + 23 * i % 97, ignore_eos=True) for i, ids in enumerate(texts())] * 4
    with ThreadPoolExecutor(8) as threads:
        gone = [threads.submit(abort_after, server, Request(requests[0].ids, 900), 1 + i) for i in range(3)]
        answers = list(threads.map(lambda request: ask(server, request), requests))
        for aborted in gone:
            aborted.result()
    assert [len(answer.ids) for answer in answers] == [request.new_tokens for request in requests]
    flush(server)
    now = load(server)
    assert now["num_used_tokens"] == 0
    assert now["max_total_num_tokens"] == MAX_TOTAL_TOKENS


# What a batch may hold besides plain greedy requests; any of them gives the whole batch steps of its own.
KINDS: list[dict[str, Any]] = [
    {},
    {},
    {"sampling_params": {"temperature": 1.0, "top_p": 0.9}},
    {"return_logprob": True},
    {"sampling_params": {"frequency_penalty": 0.5}},
    {"sampling_params": {"stop": ["no such text"]}},
]


def test_turns_and_single_steps_take_turns(server):
    """Requests that chain and requests that do not, come and go at random; all is accounted for."""
    flush(server)
    draw = random.Random(7)

    def answer(number: int) -> dict[str, Any]:
        kind = KINDS[number % len(KINDS)]
        sampling = {"temperature": 0, "max_new_tokens": lengths[number], "ignore_eos": True}
        body = {"input_ids": list(texts()[number % PROMPTS]), **kind}
        body["sampling_params"] = sampling | kind.get("sampling_params", {})
        got = httpx.post(f"{server.url}/generate", json=body, timeout=REQUEST_SECONDS)
        got.raise_for_status()
        return got.json()

    lengths = [draw.randint(1, 160) for _ in range(240)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(answer, range(len(lengths))))
    assert [len(got["output_ids"]) for got in answers] == lengths
    for got, length in zip(answers, lengths, strict=True):
        steps = got["meta_info"].get("spec_verify_ct", 0)
        # The first token is the prefill's; a step emits at least one.
        assert (length > 1) <= steps <= length - 1
    flush(server)
    assert load(server)["num_used_tokens"] == 0

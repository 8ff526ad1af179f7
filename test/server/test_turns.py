# SPDX-License-Identifier: Apache-2.0
"""Several steps a turn of the scheduler: the tokens, what is counted, and nothing left behind.

A CPU takes longer for a step than the default allows a turn, so these servers are given all the time there is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from harness.config import MAX_TOTAL_TOKENS, ServerConfig
from harness.generate import REQUEST_SECONDS, Generation, flush, hang_up, load, wait_idle
from harness.process import Server
from harness.prompts import NEW_TOKENS, all_prompts

ALL_THE_TIME = ("--speculative-turn-ms", "1e9")
CONFIGS = [
    ServerConfig("random-mla", "DDTREE", page_size=16, budget=32, options=ALL_THE_TIME),
    ServerConfig("random-gqa", "DDTREE", page_size=1, budget=8, options=ALL_THE_TIME),
    ServerConfig("random-mla", "DFLASH", page_size=1, options=ALL_THE_TIME),
]
pytestmark = [
    pytest.mark.long,
    pytest.mark.parametrize("server", CONFIGS, indirect=True, ids=str),
]


def test_turns_are_said_to_have_several_steps(server: Server):
    info = httpx.get(f"{server.url}/server_info", timeout=REQUEST_SECONDS).json()
    assert info["internal_states"][0]["speculative_turns"] == {"most": 4, "turn_ms": 1e9}


def ask(server: Server, ids: Sequence[int], new_tokens: int = NEW_TOKENS, **more: Any) -> dict[str, Any]:
    """A greedy answer without log-probabilities, which would need steps of their own."""
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, **more.pop("sampling", {})}
    body = {"input_ids": list(ids), "sampling_params": sampling, **more}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    return answer.json()


def wrong(server: Server, expected: dict[str, Generation], at_once: int, **more: Any) -> list[str]:
    """Prompts that got other tokens than from plain decoding, or ended otherwise."""
    flush(server)
    prompts = all_prompts()
    with ThreadPoolExecutor(at_once) as threads:
        answers = list(threads.map(lambda prompt: ask(server, prompt.ids, **more), prompts))
    return [
        prompt.name
        for prompt, answer in zip(prompts, answers, strict=True)
        if (answer["output_ids"], answer["meta_info"]["finish_reason"]["type"])
        != (expected[prompt.name].ids, expected[prompt.name].finish)
    ]


@pytest.mark.parametrize("at_once", [1, 8])
def test_tokens_are_those_of_plain_decoding(server, expected, at_once):
    assert not wrong(server, expected, at_once)


def test_batches_that_chain_and_batches_that_do_not_take_turns(server, expected):
    """Log-probabilities need a step of its own, for the whole batch that the request is in."""
    with ThreadPoolExecutor(1) as thread:
        prompt = all_prompts()[0]
        others = thread.submit(
            lambda: [ask(server, prompt.ids, 9, return_logprob=True)["output_ids"] for _ in range(12)]
        )
        with ThreadPoolExecutor(4) as threads:
            prompts = all_prompts()
            answers = list(threads.map(lambda prompt: ask(server, prompt.ids)["output_ids"], prompts))
        assert others.result() == [expected[prompt.name].ids[:9]] * 12
    assert answers == [expected[prompt.name].ids for prompt in prompts]


def test_every_step_is_counted(server):
    meta = ask(server, all_prompts()[0].ids, 120, sampling={"ignore_eos": True})["meta_info"]
    histogram = meta["spec_correct_drafts_histogram"]
    assert sum(histogram) == meta["spec_verify_ct"]
    assert sum(depth * steps for depth, steps in enumerate(histogram)) == meta["spec_num_correct_drafts"]
    # The prefill's token, then a bonus and its drafts a step; the last step may have had more than was asked for, and
    # those behind it do not count.
    emitted = 1 + meta["spec_verify_ct"] + meta["spec_num_correct_drafts"]
    assert 120 <= emitted < 120 + len(histogram)


def test_requests_that_end_or_leave_in_a_turn_leave_nothing_behind(server):
    draw, prompts = random.Random(0), all_prompts()
    lengths = [draw.randint(1, 60) for _ in range(48)]

    def one(i: int) -> None:
        ids = prompts[i % len(prompts)].ids
        if i % 6 == 5:
            hang_up(server, ids, 1 + i % 3)
        else:
            answer = ask(server, ids, lengths[i], sampling={"ignore_eos": True})
            assert len(answer["output_ids"]) == lengths[i]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, range(len(lengths))))
    wait_idle(server)
    flush(server)
    now = load(server)
    assert now["num_used_tokens"] == 0
    assert now["max_total_num_tokens"] == MAX_TOTAL_TOKENS

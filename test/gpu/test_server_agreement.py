# SPDX-License-Identifier: Apache-2.0
"""Our verify against SGLang's Triton verify, choice by choice, under the same prefixes in bf16."""

from __future__ import annotations

from functools import cache
from itertools import chain

import httpx
import pytest
from gpu_harness.config import GpuConfig
from gpu_harness.requests import Request, ask, ask_together
from gpu_harness.teacher import Agreement, compare
from harness.config import MODELS
from harness.generate import REQUEST_SECONDS, flush
from harness.process import Server
from tokenizers import Tokenizer

from benchmark.accept import prompts
from tools.tiny_models import ensure

PAIR = "trained-mla"
PROMPTS, PLACES = 50, 64
LEAST_SHARE = 0.995

# Where the choices differ, the two best tokens must have been nearly equal. Logits are rounded to bf16 at a magnitude
# of 8 to 32, so a unit in the last place is 1/16 to 1/8; several roundings lie between kernel and logit.
MOST_GAP = 0.5


@cache
def texts() -> list[tuple[int, ...]]:
    """Held-out code, docstrings and prose as token ids, then the same cut short."""
    tokenizer = Tokenizer.from_file(str(ensure(MODELS, PAIR).target / "tokenizer.json"))
    whole = [tuple(tokenizer.encode(prompt.text).ids) for prompt in prompts.load()]
    return [*whole, *(ids[: len(ids) // 2] for ids in whole)][:PROMPTS]


def gap(server: Server, prefix: tuple[int, ...], first: int, second: int) -> float:
    """Difference of the log-probabilities of two tokens after ``prefix``."""
    body = {
        "input_ids": list(prefix),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "token_ids_logprob": [first, second],
    }
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    ((one, two),) = answer.json()["meta_info"]["output_token_ids_logprobs"]
    return abs(one[0] - two[0])


@pytest.mark.parametrize("algorithm", ["DDTREE", "DFLASH"])
def test_choices_under_the_same_prefix_agree(gpu_pool, record, algorithm):
    off = gpu_pool.get(GpuConfig(PAIR, algorithm, backend="triton"), ahead=False)
    asked = [Request(ids, PLACES, ignore_eos=True) for ids in texts()]
    references = ask_together(off, asked, at_once=8)

    on = gpu_pool.get(GpuConfig(PAIR, algorithm), ahead=False)
    agreement = Agreement()
    for request, reference in zip(asked, references, strict=True):
        compare(
            request.ids,
            reference.ids,
            lambda ids, new: ask(on, Request(ids, new, ignore_eos=True)).ids,
            agreement,
        )
    # All but what a prefill chose.
    assert agreement.compared >= 0.9 * PROMPTS * PLACES
    gaps = [gap(off, d.prefix, d.reference, d.chosen) for d in agreement.departures]
    record(share=agreement.share, compared=agreement.compared, gaps=sorted(gaps))
    assert agreement.share >= LEAST_SHARE
    assert max(gaps, default=0.0) <= MOST_GAP


@pytest.mark.parametrize("server", [GpuConfig(PAIR)], indirect=True, ids=str)
def test_eight_at_once_say_what_one_says(server, record):
    """With shared prefixes, so that most of a prompt is found in the radix cache."""
    shared = tuple(chain.from_iterable(texts()[:6]))
    asked = [Request((*shared[: 100 * (1 + i % 7)], *texts()[6 + i]), PLACES, ignore_eos=True) for i in range(24)]
    flush(server)
    alone = [answer.ids for answer in ask_together(server, asked, at_once=1)]
    flush(server)
    together = [answer.ids for answer in ask_together(server, asked, at_once=8)]
    # The batch changes the shapes of matrix products and so their rounding: where a choice differs, it was a tie.
    for request, one, eight in zip(asked, alone, together, strict=True):
        at = next((i for i, (a, b) in enumerate(zip(one, eight, strict=True)) if a != b), None)
        if at is not None:
            assert gap(server, (*request.ids, *one[:at]), one[at], eight[at]) <= MOST_GAP
    same = sum(one == eight for one, eight in zip(alone, together, strict=True))
    record(equal_to_the_last_token=same, answers=len(asked))
    assert same >= len(asked) // 2

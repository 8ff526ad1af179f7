# SPDX-License-Identifier: Apache-2.0
"""The OpenAI API as its own client sees it, speculative decoding on.

The model walks a fixed graph of characters (``tools/tiny_models/cycle.py``), so the
answers stand here in the clear.
"""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import jsonschema
import openai
import pytest
from harness.config import ServerConfig
from harness.prompts import shared_tokenizer, walk

MODEL = "default"

pytestmark = pytest.mark.parametrize("server", [ServerConfig("cycle-mla", "DFLASH")], indirect=True, ids=str)


def complete(client: openai.OpenAI, prompt: str, **more):
    return client.completions.create(model=MODEL, prompt=prompt, **{"temperature": 0, "max_tokens": 20, **more})


def chat(client: openai.OpenAI, content: str = "say b", **more):
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": content}],
        **{"temperature": 0, "max_tokens": 20, **more},
    )


def chat_answer(tokens: int) -> str:
    """What the model says after the chat template, whose last token is a line's end."""
    tokenizer = shared_tokenizer()
    last = tokenizer.encode("<|im_start|>assistant\n").ids[-1]
    return tokenizer.decode(walk(last, tokens))


@pytest.mark.parametrize(
    ("prompt", "text", "finish"),
    [
        ("a", "a" * 20, "length"),
        ("b", "cb" * 10, "length"),
        ("d", "efd" * 6 + "ef", "length"),
        ("pqrstuv", "pqrstuv" * 2 + "pqrstu", "length"),
        ("0", "123456789", "stop"),
        ("7", "89", "stop"),
    ],
)
def test_completion(client, prompt, text, finish):
    answer = complete(client, prompt)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (text, finish)
    # The end-of-text token counts, though it has no text.
    assert answer.usage.completion_tokens == len(text) + (finish == "stop")


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 10, 17])
def test_max_tokens_cuts_an_accepted_block(client, tokens):
    answer = complete(client, "a", max_tokens=tokens)
    assert answer.choices[0].text == "a" * tokens
    assert answer.usage.completion_tokens == tokens


def test_completion_stream(client):
    chunks = list(complete(client, "b", stream=True, stream_options={"include_usage": True}, max_tokens=40))
    texts = [c.choices[0].text for c in chunks if c.choices]
    assert "".join(texts) == "cb" * 20
    assert sum(1 for text in texts if text) > 1
    assert chunks[-1].usage.completion_tokens == 40
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_chat(client):
    (choice,) = chat(client).choices
    assert choice.message.content == chat_answer(20)
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"


def test_chat_stream(client):
    chunks = [c for c in chat(client, stream=True) if c.choices]
    parts = [c.choices[0].delta.content or "" for c in chunks]
    assert "".join(parts) == chat_answer(20)
    assert sum(1 for part in parts if part) > 1
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "stop", "text"),
    [
        ("b", ["bc"], "c"),
        # Across the border of two blocks, and inside a block that was accepted whole.
        ("pqrstuv", ["uvpq"], "pqrst"),
        ("d", ["ddd", "fde"], "e"),
        ("a", ["aaaaa"], ""),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_stop_strings(client, prompt, stop, text, stream):
    answer = complete(client, prompt, stop=stop, stream=stream)
    pieces = list(answer) if stream else [answer]
    assert "".join(piece.choices[0].text for piece in pieces) == text
    assert pieces[-1].choices[0].finish_reason == "stop"


def test_completion_logprobs(client):
    logprobs = complete(client, "b", logprobs=3, max_tokens=12).choices[0].logprobs
    assert logprobs.tokens == list("cb" * 6)
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(top) == 3
        assert value == max(top.values()) == top[token]
        assert value < 0
    # The model is all but memoryless: the same step has the same probability.
    assert logprobs.token_logprobs[2:] == pytest.approx(logprobs.token_logprobs[:-2], abs=0.5)


def test_chat_logprobs(client):
    (choice,) = chat(client, logprobs=True, top_logprobs=2).choices
    entries = choice.logprobs.content
    assert len(entries) == 20
    assert "".join(entry.token for entry in entries) == choice.message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 2
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) < 1 + 1e-4


SCHEMA = {
    "type": "object",
    "properties": {
        "accepted": {"type": "boolean"},
        "depth": {"type": "integer", "minimum": 1, "maximum": 9},
        "kind": {"enum": ["tree", "chain"]},
    },
    "required": ["accepted", "depth", "kind"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_json_schema(client, stream):
    answer = chat(
        client,
        max_tokens=200,
        stream=stream,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "verdict", "schema": SCHEMA, "strict": True},
        },
    )
    if stream:
        text = "".join(c.choices[0].delta.content or "" for c in answer if c.choices)
    else:
        text = answer.choices[0].message.content
    jsonschema.validate(json.loads(text), SCHEMA)


def test_several_choices(client):
    answer = complete(client, "d", n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.text for choice in answer.choices] == ["efd" * 6 + "ef"] * 2
    chats = chat(client, n=2).choices
    assert [choice.message.content for choice in chats] == [chat_answer(20)] * 2


def test_several_prompts(client):
    answer = complete(client, ["a", "b", "0"])
    assert [choice.text for choice in answer.choices] == ["a" * 20, "cb" * 10, "123456789"]


def test_more_requests_than_the_server_runs_at_once(client):
    lengths = range(1, 25)
    with ThreadPoolExecutor(len(lengths)) as threads:
        answers = threads.map(lambda n: complete(client, "d", max_tokens=n), lengths)
        texts = [answer.choices[0].text for answer in answers]
    assert texts == [("efd" * 9)[:n] for n in lengths]


def test_sampling_draws_from_the_targets_distribution(client):
    """Speculation must not turn sampling into greedy decoding, nor skew it.

    From ``a`` the target says ``a`` with a probability p that it reports itself;
    drafts propose ``a`` always. Over n steps the share of ``a`` after ``a`` lies
    within five standard deviations of p.
    """
    greedy = complete(client, "aaaaaaaa", logprobs=1, max_tokens=8).choices[0].logprobs
    p = math.exp(sum(greedy.token_logprobs) / len(greedy.token_logprobs))
    assert 0.1 < p < 0.95

    answer = complete(client, "aaaaaaaa", temperature=1, n=64, max_tokens=24, logprobs=1, seed=11)
    steps = stays = 0
    for choice in answer.choices:
        tokens = ["a", *choice.logprobs.tokens]
        for here, there in pairwise(tokens):
            if here == "a":
                steps += 1
                stays += there == "a"
    assert steps > 100
    assert abs(stays / steps - p) < 5 * math.sqrt(p * (1 - p) / steps)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"max_tokens": -5},
        {"top_p": 2},
        {"max_tokens": 100_000},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_bad_request_is_refused_and_the_server_goes_on(client, wrong):
    with pytest.raises(openai.BadRequestError):
        chat(client, **wrong)
    assert complete(client, "0").choices[0].text == "123456789"

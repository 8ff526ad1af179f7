# SPDX-License-Identifier: Apache-2.0
"""In float32, speculative decoding says token for token what plain decoding says.

``random-*`` targets hang on their whole context, so a wrong mask, position or KV row
shows; ``cycle-*`` targets have an answer that is known without any server.
"""

from __future__ import annotations

import pytest
from harness.compare import ask_one_by_one, ask_together, differences
from harness.config import CHUNKED_PREFILL_SIZE, ServerConfig
from harness.generate import flush, generate
from harness.prompts import (
    ACCEPTING,
    NEW_TOKENS,
    all_prompts,
    long_prompts,
    short_prompts,
    spell,
    walk,
)

SPECULATIVE = [
    *(
        ServerConfig(pair, algorithm, page_size)
        for pair in ("random-mla", "random-gqa")
        for algorithm in ("NGRAM", "DFLASH")
        for page_size in (1, 16)
    ),
    # Narrower than the draft's block, wider, and wider than a mask word or two.
    ServerConfig("random-mla", "DDTREE", page_size=1, budget=1),
    ServerConfig("random-mla", "DDTREE", page_size=16, budget=8),
    ServerConfig("random-mla", "DDTREE", page_size=64, budget=32),
    ServerConfig("random-mla", "DDTREE", page_size=1, budget=64),
    ServerConfig("random-gqa", "DDTREE", page_size=64, budget=1),
    ServerConfig("random-gqa", "DDTREE", page_size=1, budget=32),
    ServerConfig("random-gqa", "DDTREE", page_size=16, budget=64),
    # The step's results are read by the next one as they lie, not relayed.
    ServerConfig("random-gqa", "DDTREE", page_size=16, budget=8, options=("--disable-overlap-schedule",)),
]
KNOWN = [
    ServerConfig("cycle-mla", "DFLASH", page_size=1),
    ServerConfig("cycle-gqa", "DFLASH", page_size=16),
]


def servers(configs: list[ServerConfig]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", configs, indirect=True, ids=str)


@servers(SPECULATIVE)
def test_one_at_a_time_from_a_cold_cache(server, expected):
    got = ask_one_by_one(server, all_prompts(), cold=True)
    assert not any(g.cached for g in got.values())
    assert not differences(got, expected)
    # A run that never accepts, or never rejects, would prove little.
    assert any(sum(g.accepts[1:]) for g in got.values())
    assert any(sum(g.accepts[:1]) for g in got.values())


@servers(SPECULATIVE)
def test_eight_at_once(server, expected):
    flush(server)
    assert not differences(ask_together(server, all_prompts()), expected)


@servers(SPECULATIVE)
def test_prompts_found_in_the_radix_cache(request, server, expected):
    flush(server)
    # The last token is always computed: a prompt of one page has no page to find.
    page_size = request.node.callspec.params["server"].page_size
    prompts = [prompt for prompt in long_prompts() if len(prompt.ids) > page_size]
    assert all(len(prompt.ids) >= CHUNKED_PREFILL_SIZE for prompt in prompts)
    ask_one_by_one(server, prompts, cold=False)
    again = ask_one_by_one(server, prompts, cold=False)
    assert all(g.cached > 0 for g in again.values())
    assert not differences(again, expected)


@servers(SPECULATIVE)
def test_a_generated_answer_found_in_the_radix_cache(server, expected):
    """KV rows that a verify committed are as good as those of a prefill."""
    got = {}
    for prompt in short_prompts()[::3]:
        whole = expected[prompt.name].ids
        half = len(whole) // 2
        flush(server)
        generate(server, prompt.ids)
        continued = generate(server, [*prompt.ids, *whole[:half]], new_tokens=NEW_TOKENS - half)
        got[prompt.name] = [*whole[:half], *continued.ids]
    assert got == {name: expected[name].ids for name in got}


@servers(KNOWN)
def test_answers_known_beforehand(server):
    flush(server)
    for prompt in all_prompts():
        got = generate(server, prompt.ids)
        assert got.ids == walk(prompt.ids[-1], NEW_TOKENS), prompt.name


@servers(KNOWN)
@pytest.mark.parametrize("drafts", ACCEPTING)
def test_a_block_accepts_as_many_drafts_as_are_right(server, drafts):
    # One token comes from the prefill, one more than the accepted drafts from the first block.
    got = generate(server, spell(ACCEPTING[drafts]), new_tokens=drafts + 2)
    expected = [0] * len(got.accepts)
    expected[drafts] = 1
    assert got.accepts == expected


@servers(KNOWN)
def test_the_end_of_the_context_is_not_overrun(server):
    """A block that reaches over the model's last position is cut, and the server goes on."""
    context = 2048
    ids = spell("def") * (context // 3 - 5)
    room = context - len(ids)
    got = generate(server, ids, new_tokens=room - 1)
    # SGLang keeps the last position or two of a context free.
    assert room - 2 <= len(got.ids) <= room
    assert got.ids == walk(ids[-1], len(got.ids))
    assert got.finish == "length"
    assert generate(server, spell("a")).ids == walk(spell("a")[0], NEW_TOKENS)

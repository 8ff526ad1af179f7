# SPDX-License-Identifier: Apache-2.0
"""DDTREE: what a tree can break that a chain cannot. The shared lossless tests run it too."""

from __future__ import annotations

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from harness.compare import ask_one_by_one, ask_together, differences
from harness.config import MAX_RUNNING_REQUESTS, ServerConfig
from harness.generate import (
    REQUEST_SECONDS,
    flush,
    generate,
    generate_together,
    hang_up,
    wait_freed,
)
from harness.process import Server
from harness.prompts import NEW_TOKENS, all_prompts, encode, short_prompts, spell, walk

from tools.tiny_models.tokenizer import EOS_ID

RANDOM = ServerConfig("random-mla", "DDTREE", page_size=16, budget=8)
DEFAULT = ServerConfig("random-mla", "DDTREE", page_size=64, budget=32)
CYCLE = ServerConfig("cycle-mla", "DDTREE", page_size=1, budget=64)
CHAIN = ServerConfig("cycle-mla", "DFLASH")
PAGED = ServerConfig("cycle-gqa", "DDTREE", page_size=16, budget=32)
# A pool that eight growing requests overrun.
CROWDED = ServerConfig(
    "random-gqa",
    "DDTREE",
    page_size=1,
    budget=32,
    options=("--max-total-tokens", "900", "--schedule-conservativeness", "0.1"),
)
# A page a token, so that each leaked slot counts.
MIXED = ServerConfig("random-gqa", "DDTREE", page_size=1, budget=32)


def servers(*configs: ServerConfig) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", configs, indirect=True, ids=str)


def post(server: Server, **body) -> Any:
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    return answer.json()


def ddtree_state(server: Server) -> dict[str, Any]:
    info = httpx.get(f"{server.url}/server_info", timeout=REQUEST_SECONDS).json()
    return info["internal_states"][0]["ddtree"]


def steps(accepts: list[int]) -> int:
    return sum(accepts)


@servers(RANDOM, CYCLE)
def test_logprobs_are_those_of_plain_decoding(server, expected):
    flush(server)
    for name, got in ask_one_by_one(server, short_prompts(), cold=False).items():
        assert got.logprobs == pytest.approx(expected[name].logprobs, rel=1e-4, abs=1e-4), name


@servers(RANDOM, CYCLE)
def test_top_logprobs_belong_to_the_emitted_token(server):
    reply = post(
        server,
        input_ids=list(encode("hello world")),
        sampling_params={"temperature": 0, "max_new_tokens": 24},
        return_logprob=True,
        top_logprobs_num=3,
    )
    tops = reply["meta_info"]["output_top_logprobs"]
    assert len(tops) == len(reply["output_ids"]) == 24
    for token, top in zip(reply["output_ids"], tops, strict=True):
        assert top[0][1] == token  # greedy: the best is the one that was said


@servers(DEFAULT, CYCLE)
def test_no_more_steps_than_dflash(request, server, pool):
    """Over the prompt set, where the states are not the same; that each step keeps up is the next test."""
    pair = request.node.callspec.params["server"].pair
    chain = pool.get(ServerConfig(pair, "DFLASH"), ahead=False)
    counts = []
    for running in (server, chain):
        flush(running)
        got = ask_one_by_one(running, all_prompts(), cold=False)
        counts.append(sum(steps(answer.accepts) for answer in got.values()))
    tree_steps, chain_steps = counts
    assert tree_steps < chain_steps


def test_a_tree_that_cuts_the_chain_is_found_out(pool):
    """The same check where it must strike: blocks of seven are right, and the tree holds three of them."""
    server = pool.get(ServerConfig("cycle-mla", "DDTREE", budget=3), ahead=False)
    assert ddtree_state(server)["keeps_greedy_chain"] is False
    generate(server, spell("efdefd"))
    check = ddtree_state(server)["chain_check"]
    assert 0 < check["violations"] <= check["states"]


@servers(CYCLE)
@pytest.mark.parametrize("length", range(1, 24))
def test_a_length_limit_inside_an_accepted_path(server, length):
    """Whatever the step accepts, exactly the tokens asked for come out."""
    ids = spell("efdefd")
    got = generate(server, ids, new_tokens=length)
    assert got.ids == walk(ids[-1], length)
    assert got.finish == "length"


@servers(CYCLE)
def test_end_of_text_inside_an_accepted_path(server):
    # The draft expects what came six tokens earlier: here 9, the end, and more beyond.
    ids = [*spell("9"), EOS_ID, *spell("aaa8")]
    got = generate(server, ids)
    assert got.ids == walk(ids[-1], NEW_TOKENS) == [*spell("9"), EOS_ID]
    assert got.finish == "stop"
    # The first token is the prefill's, so the end is an accepted draft or the bonus.
    assert steps(got.accepts) == 1
    wait_freed(server)


@servers(CYCLE, CHAIN)
def test_the_least_length_of_an_answer_is_kept(server):
    ids = [*spell("9"), EOS_ID, *spell("aaa8")]
    assert len(generate(server, ids, new_tokens=40).ids) == 2
    got = generate(server, ids, new_tokens=40, min_new_tokens=20)
    assert len(got.ids) >= 20
    assert EOS_ID not in got.ids[:19]


@servers(CYCLE, CHAIN)
def test_penalties_are_applied(server):
    ids = spell("efdefd")
    plain = generate(server, ids, new_tokens=40)
    assert plain.ids == walk(ids[-1], 40) and len(set(plain.ids)) == 3
    assert len(set(generate(server, ids, new_tokens=40, frequency_penalty=2.0).ids)) > 3
    # Half of the best logits is the best still, but not by as much.
    repeated = generate(server, ids, new_tokens=40, repetition_penalty=2.0)
    assert min(repeated.logprobs) < min(plain.logprobs) - 1


@servers(CYCLE)
@pytest.mark.parametrize("stop", ["d", "fd", "efde"])
def test_a_stop_string_inside_an_accepted_path(server, stop):
    reply = post(
        server,
        input_ids=list(spell("efdefd")),
        sampling_params={"temperature": 0, "max_new_tokens": 40, "stop": [stop]},
    )
    assert reply["meta_info"]["finish_reason"]["type"] == "stop"
    assert reply["meta_info"]["finish_reason"]["matched"] == stop
    said = "efd" * 20
    assert reply["text"] == said[: said.index(stop)]


@servers(CYCLE, PAGED)
def test_the_context_is_used_to_its_last_token(server):
    context = 2048
    ids = spell("def") * (context // 3 - 5)
    room = context - len(ids)
    got = generate(server, ids, new_tokens=room - 1)
    assert room - 2 <= len(got.ids) <= room
    assert got.ids == walk(ids[-1], len(got.ids))
    # A window past the row's end would have written into the next request's row.
    neighbours = [spell("def") * (context // 3 - 5), *(spell(c) for c in "abk0")]
    with ThreadPoolExecutor(len(neighbours)) as threads:
        answers = threads.map(lambda p: generate(server, p, new_tokens=12), neighbours)
    for prompt, answer in zip(neighbours, answers, strict=True):
        assert answer.ids == walk(prompt[-1], 12)


@servers(RANDOM)
def test_requests_that_end_in_the_same_step(server, expected):
    flush(server)
    prompt = next(p for p in short_prompts() if len(p.ids) > 5)
    whole = expected[prompt.name].ids
    got = generate_together(server, [prompt.ids] * 8, MAX_RUNNING_REQUESTS)
    assert all(answer.ids == whole for answer in got)


@servers(RANDOM)
def test_aborts_during_a_verify_leave_the_others_right(server, expected):
    flush(server)
    prompts = short_prompts()
    draw = random.Random(3)

    def ask(index: int):
        prompt = prompts[index % len(prompts)]
        if index % 2 == 0:
            return prompt.name, generate(server, prompt.ids).ids
        hang_up(server, prompt.ids, draw.randrange(1, 9))
        return None

    with ThreadPoolExecutor(MAX_RUNNING_REQUESTS) as threads:
        answers = list(filter(None, threads.map(ask, range(40))))
    for name, ids in answers:
        assert ids == expected[name].ids, name
    wait_freed(server)


@servers(CROWDED)
def test_retracted_requests_say_the_same(server):
    flush(server)
    prompts = [p.ids for p in short_prompts()][:8]
    alone = [generate(server, ids, new_tokens=200).ids for ids in prompts]
    flush(server)

    # In one batch, else some end before the pool is full; with ignore_eos the scheduler would admit only what fits.
    replies = post(
        server,
        input_ids=[list(ids) for ids in prompts],
        sampling_params={"temperature": 0, "max_new_tokens": 200},
    )
    retractions = sum(reply["meta_info"]["num_retractions"] for reply in replies)
    assert retractions > 0  # or the pool was not crowded
    assert [reply["output_ids"] for reply in replies] == alone
    wait_freed(server)


@pytest.mark.parametrize(
    ("server", "count"), [(RANDOM, 200), (MIXED, 1000)], indirect=["server"], ids=["200-requests", "1000-requests"]
)
def test_no_slot_is_lost_over_many_mixed_requests(server, count, expected):
    """Short and long, cached or not, greedy, sampled, bound by a schema, or given up half way."""
    flush(server)
    prompts = all_prompts()
    draw = random.Random(1)
    kinds = ("greedy", "greedy", "sampled", "schema", "given up")
    plans = [(draw.choice(kinds), draw.choice(prompts), draw.choice((1, 2, 7, 40))) for _ in range(count)]

    def ask(plan) -> list[int] | None:
        kind, prompt, tokens = plan
        match kind:
            case "greedy":
                return generate(server, prompt.ids, tokens).ids
            case "sampled":
                generate(server, prompt.ids, tokens, temperature=0.8)
            case "schema":
                generate(server, prompt.ids, tokens, json_schema=json.dumps(SCHEMA))
            case "given up":
                hang_up(server, prompt.ids, tokens)
        return None

    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(ask, plans))
    for (kind, prompt, tokens), ids in zip(plans, answers, strict=True):
        if kind == "greedy":
            assert ids == expected[prompt.name].ids[:tokens], prompt.name
    wait_freed(server)


def test_hidden_states_are_those_of_plain_decoding(pool):
    options = ("--enable-return-hidden-states",)
    answers = []
    for config in (
        ServerConfig("random-mla", options=options),
        ServerConfig("random-mla", "DDTREE", budget=32, options=options),
    ):
        running = pool.get(config, ahead=False)
        flush(running)
        answers.append(
            [
                post(
                    running,
                    input_ids=list(prompt.ids),
                    sampling_params={"temperature": 0, "max_new_tokens": 12},
                    return_hidden_states=True,
                )
                for prompt in short_prompts()[:6]
            ]
        )
    for plain, tree in zip(*answers, strict=True):
        assert tree["output_ids"] == plain["output_ids"]
        states = [flat_rows(reply["meta_info"]["hidden_states"]) for reply in (tree, plain)]
        assert len(states[0]) == len(states[1]) > 0
        for row, wanted in zip(*states, strict=True):
            assert row == pytest.approx(wanted, rel=1e-3, abs=1e-3)


def flat_rows(states: list) -> list[list[float]]:
    """The prompt's rows come as one list of rows, each later one alone."""
    rows: list[list[float]] = []
    for entry in states:
        rows += entry if isinstance(entry[0], list) else [entry]
    return rows


def test_two_ranks_grow_the_same_trees(models, environ, logs, plain_outputs):
    """Ranks that differed in a tree would differ in length and hang at the next step."""
    pair = "random-gqa"
    config = ServerConfig(pair, "DDTREE", budget=32, options=("--tp-size", "2"))
    # SGLang wants a NUMA node a rank unless it is told where each may run.
    binding = {**environ, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    expected = plain_outputs(pair)
    server = Server(config.arguments(models[pair]), logs / f"{config}.log", binding)
    try:
        server.wait_ready()
        got = ask_together(server, all_prompts())
    finally:
        server.stop()
    assert not differences(got, expected)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,6}$"},
        "ok": {"type": "boolean"},
        "kind": {"enum": ["fox", "dog", "tree"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "ok", "kind", "n"],
    "additionalProperties": False,
}


@servers(RANDOM)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema_is_kept_by_every_answer(server, temperature):
    draw = random.Random(int(temperature))
    prompts = [[*draw.choice(all_prompts()).ids[-40:], draw.randrange(10, 200)] for _ in range(100)]

    def ask(ids: list[int]) -> dict:
        return post(
            server,
            input_ids=ids,
            sampling_params={
                "temperature": temperature,
                "max_new_tokens": 120,
                "json_schema": json.dumps(SCHEMA),
            },
        )

    with ThreadPoolExecutor(MAX_RUNNING_REQUESTS) as threads:
        replies = list(threads.map(ask, prompts))
    accepted = 0
    for reply in replies:
        value = json.loads(reply["text"])
        assert set(value) == set(SCHEMA["required"])
        assert isinstance(value["name"], str) and isinstance(value["ok"], bool)
        assert value["kind"] in ("fox", "dog", "tree") and 0 <= value["n"] <= 99
        accepted += reply["meta_info"]["spec_num_correct_drafts"]
    assert accepted > 0


GRAMMARS = {
    "regex": ({"regex": "[a-f]{3,9}-[0-9]{4}"}, "[a-f]{3,9}-[0-9]{4}"),
    "ebnf": (
        {"ebnf": 'root ::= animal ("," animal){2,5}\nanimal ::= "fox" | "dog" | "tree"'},
        "(fox|dog|tree)(,(fox|dog|tree)){2,5}",
    ),
}


@servers(RANDOM)
@pytest.mark.parametrize("kind", GRAMMARS)
def test_a_grammar_is_kept_with_the_tokens_of_plain_decoding(server, pool, kind):
    grammar, pattern = GRAMMARS[kind]
    plain = pool.get(ServerConfig(RANDOM.pair), ahead=False)
    for prompt in short_prompts()[:6]:
        body = {"input_ids": list(prompt.ids), "sampling_params": {"temperature": 0, "max_new_tokens": 60, **grammar}}
        got, wanted = post(server, **body), post(plain, **body)
        assert got["output_ids"] == wanted["output_ids"], prompt.name
        assert re.fullmatch(pattern, got["text"])


@servers(RANDOM)
def test_a_tool_that_must_be_called_is(client):
    """Without a parser for the model's own format, the call comes as the answer's text."""
    answer = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "which animal?"}],
        tools=[{"type": "function", "function": {"name": "pick", "parameters": SCHEMA}}],
        tool_choice={"type": "function", "function": {"name": "pick"}},
        parallel_tool_calls=False,  # else the grammar allows any number of calls, and random weights do not end
        max_tokens=200,
        temperature=1,
    )
    assert answer.choices[0].finish_reason != "length"
    (call,) = json.loads(answer.choices[0].message.content)
    assert call["name"] == "pick" and set(call["parameters"]) == set(SCHEMA["required"])


@servers(RANDOM)
def test_a_logit_bias_gives_the_tokens_of_plain_decoding(server, pool, expected):
    plain = pool.get(ServerConfig(RANDOM.pair), ahead=False)
    changed = 0
    for prompt in short_prompts()[:6]:
        bias = {str(token): -4.0 for token in expected[prompt.name].ids[::3]}
        got, wanted = (generate(running, prompt.ids, logit_bias=bias) for running in (server, plain))
        assert got.ids == wanted.ids, prompt.name
        changed += got.ids != expected[prompt.name].ids
    assert changed  # or the bias was not applied by either


@servers(RANDOM)
def test_an_answer_reports_its_trees(server):
    reply = post(
        server,
        input_ids=list(encode("hello world")),
        sampling_params={"temperature": 0, "max_new_tokens": 30, "ignore_eos": True},
    )
    meta = reply["meta_info"]
    histogram = meta["spec_correct_drafts_histogram"]
    accepted = sum(depth * count for depth, count in enumerate(histogram))
    assert sum(histogram) == meta["spec_verify_ct"]
    assert accepted == meta["spec_num_correct_drafts"]
    assert meta["spec_tree_budget"] == RANDOM.budget
    assert 0 < meta["spec_tree_nodes"] <= RANDOM.budget
    assert meta["spec_accept_rate"] == pytest.approx(accepted / (7 * sum(histogram)))
    assert meta["spec_accept_length"] == pytest.approx(30 / sum(histogram))
    text = httpx.get(f"{server.url}/metrics", timeout=REQUEST_SECONDS).text
    for name in ("spec_accepted_depth_bucket", "spec_tree_nodes", "spec_accept_rate"):
        assert f"sglang:{name}{{" in text


@servers(RANDOM, DEFAULT, CYCLE)
def test_no_step_accepts_less_than_the_chain_would(server):
    """On every state that the server has met, thousands of them, greedy and sampled."""
    prompts = [prompt.ids for prompt in short_prompts()]
    for temperature in (1.0, 0.0) * 10:
        generate_together(
            server, prompts, MAX_RUNNING_REQUESTS, new_tokens=50, temperature=temperature, ignore_eos=True
        )
        check = ddtree_state(server)["chain_check"]
        if check["states"] > 3000:
            break
    assert check["states"] > 3000
    assert check["violations"] == 0

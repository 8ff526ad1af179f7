# SPDX-License-Identifier: Apache-2.0
"""The trained pairs: a server accepts, step by step, what the models in plain PyTorch say it must.

So the drafter sees what it was trained on: the right features, positions and masks;
and a tree is as far ahead of the chain as the same logits allow.
"""

from __future__ import annotations

from functools import cache

import pytest
from harness.config import ServerConfig
from harness.generate import Generation, generate
from harness.process import Server
from tokenizers import Tokenizer

from benchmark.accept import prompts
from benchmark.accept.__main__ import check
from benchmark.accept.replay import CHAIN, Replay, Tree
from benchmark.tiny.export import read_pair
from tools.tiny_models import ModelPair, ensure

pytestmark = pytest.mark.long

NEW_TOKENS = 64
PROMPTS = [prompt for kind in prompts.KINDS for prompt in [p for p in prompts.load() if p.kind == kind][:2]]

DDTREE = [
    ServerConfig("trained-mla", "DDTREE", page_size=16, budget=32),
    ServerConfig("trained-gqa", "DDTREE", page_size=1, budget=16),
]
DFLASH = [ServerConfig("trained-mla", "DFLASH")]


def kept(config: ServerConfig, tmp_path_factory) -> ModelPair:
    return ensure(tmp_path_factory.getbasetemp(), config.pair)


def encoded(pair: ModelPair) -> list[tuple[int, ...]]:
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    return [tuple(tokenizer.encode(prompt.text).ids) for prompt in PROMPTS]


def answers(server: Server, texts: list[tuple[int, ...]]) -> list[Generation]:
    return [generate(server, ids, NEW_TOKENS, ignore_eos=True) for ids in texts]


@cache
def replays(pair: ModelPair, kind: str, outputs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> list[Replay]:
    target, drafter = read_pair(pair.target.parent, kind)
    return [Replay(target, drafter, list(ids), list(output)) for ids, output in outputs]


@pytest.mark.parametrize("server", [*DFLASH, *DDTREE], indirect=True, ids=str)
def test_steps_are_those_of_the_training_models(request, server, tmp_path_factory):
    config = request.node.callspec.params["server"]
    pair = kept(config, tmp_path_factory)
    texts = encoded(pair)
    got = answers(server, texts)
    outputs = tuple((ids, tuple(one.ids)) for ids, one in zip(texts, got, strict=True))

    known = replays(pair, config.pair.removeprefix("trained-"), outputs)
    tree = CHAIN if config.budget is None else Tree(config.budget, topk=8)
    served = [[depth for depth, times in enumerate(one.accepts) for _ in range(times)] for one in got]
    check([one.steps(tree) for one in known], served, str(config))
    if tree is not CHAIN:
        # By how much is up to the drafter: `make bench-accept` measures it.
        assert sum(len(one.steps(tree)) for one in known) < sum(len(one.steps(CHAIN)) for one in known)


@pytest.mark.parametrize("server", DDTREE, indirect=True, ids=str)
def test_no_more_steps_than_dflash(request, server, pool, tmp_path_factory):
    """Server against server, with the same tokens: a tree that held the chain back would take more steps."""
    config = request.node.callspec.params["server"]
    texts = encoded(kept(config, tmp_path_factory))
    tree = answers(server, texts)
    chain = answers(pool.get(ServerConfig(config.pair, "DFLASH", config.page_size), ahead=False), texts)
    assert [answer.ids for answer in tree] == [answer.ids for answer in chain]
    steps = [sum(sum(answer.accepts) for answer in all_of) for all_of in (tree, chain)]
    assert 0 < steps[0] <= steps[1]

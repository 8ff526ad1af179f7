# SPDX-License-Identifier: Apache-2.0
"""What lies in ``models/``: whole, small, and as good as its card says."""

from __future__ import annotations

import json

import pytest
import torch
from tokenizers import Tokenizer

from benchmark.accept import prompts
from benchmark.tiny import corpus, evaluation, export
from benchmark.tiny.card import KEPT
from benchmark.tiny.sizes import DRAFTERS, TARGETS

GOAL = 3.0


@pytest.fixture(params=TARGETS)
def kind(request) -> str:
    return request.param


def test_every_file_has_its_hash(kind):
    place = KEPT / f"trained-{kind}"
    listed = dict(line.split("  ")[::-1] for line in (place / "SHA256SUMS").read_text().splitlines())
    assert listed == export.hashes(place)


def test_size_and_config(kind):
    place = KEPT / f"trained-{kind}"
    assert sum(path.stat().st_size for path in place.rglob("*.safetensors")) <= export.LIMIT_BYTES
    for name, config in (("target", TARGETS[kind].config()), ("draft", DRAFTERS[kind].config(TARGETS[kind]))):
        assert json.loads((place / name / "config.json").read_text()) == config


def test_the_goals_of_training(kind):
    report = json.loads((KEPT / f"trained-{kind}" / "training.json").read_text())
    assert report["corpus_sha256"] == corpus.SHA256
    for row in report["perplexity"].values():
        assert row["model, windows of 1024"] < 0.6 * row["trigram"]
    assert report["accept_length"]["library"] >= GOAL


def test_the_kept_weights_reach_the_goal(kind):
    """A few held-out beginnings of functions, continued and replayed here: the weights are those of the card."""
    torch.set_num_threads(1)
    target, drafter = export.read_pair(KEPT / f"trained-{kind}", kind)
    tokenizer = Tokenizer.from_file(str(KEPT / f"trained-{kind}" / "target" / "tokenizer.json"))
    length = 96
    some = [tokenizer.encode(prompt.text).ids[-length:] for prompt in prompts.load() if prompt.kind == "code"]
    ids = torch.tensor([one for one in some if len(one) == length])
    texts = evaluation.greedy_texts(target, ids, 48)
    assert evaluation.accept_length(target, drafter, texts, length) > 0.8 * GOAL

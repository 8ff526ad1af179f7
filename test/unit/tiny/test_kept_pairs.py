# SPDX-License-Identifier: Apache-2.0
"""What lies in ``models/``: whole, small, and as good as its card says."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from benchmark.accept import prompts
from benchmark.tiny import corpus, evaluation, export
from benchmark.tiny.card import KEPT
from benchmark.tiny.sizes import DRAFTERS, TARGETS
from tools.tiny_models import TRAINED


@pytest.fixture(params=TRAINED)
def kind(request) -> str:
    return request.param.removeprefix("trained-")


def test_every_file_has_its_hash(kind):
    place = KEPT / f"trained-{kind}"
    listed = dict(line.split("  ")[::-1] for line in (place / "SHA256SUMS").read_text().splitlines())
    assert listed == export.hashes(place)


def test_size_and_config(kind):
    place = KEPT / f"trained-{kind}"
    assert sum(path.stat().st_size for path in place.rglob("*.safetensors")) <= export.LIMIT_BYTES
    for name, config in (("target", TARGETS[kind].config()), ("draft", DRAFTERS[kind].config(TARGETS[kind]))):
        assert json.loads((place / name / "config.json").read_text()) == config


def report(kind: str) -> dict[str, Any]:
    return json.loads((KEPT / f"trained-{kind}" / "training.json").read_text())


def test_the_target_is_well_ahead_of_a_trigram_model(kind):
    said = report(kind)
    assert said["corpus_sha256"] == corpus.SHA256
    for name, trigram in said["trigram"].items():
        assert said["perplexity"][name]["model, windows of 1024"] < 0.4 * trigram


def test_the_drafter_reaches_its_goal_and_what_its_card_says(kind):
    """Held-out beginnings of code and docstrings, continued and replayed here."""
    target, drafter = export.read_pair(KEPT / f"trained-{kind}", kind)
    tokenizer = Tokenizer.from_file(str(KEPT / f"trained-{kind}" / "target" / "tokenizer.json"))
    length = 96
    some = [tokenizer.encode(prompt.text).ids[-length:] for prompt in prompts.load() if prompt.kind != "prose"]
    ids = torch.tensor([one for one in some if len(one) == length])
    texts = evaluation.greedy_texts(target, ids, 80)
    measured = evaluation.accept_length(target, drafter, texts, length)
    said = report(kind)["accept_length"]["library"]["first 80 tokens"]
    assert measured == pytest.approx(said, rel=0.25)
    assert min(measured, said) >= 3

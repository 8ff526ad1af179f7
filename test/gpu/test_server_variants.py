# SPDX-License-Identifier: Apache-2.0
"""Other ways of decoding over ``ddtree_sm120``: no speculation, NGRAM, EAGLE with chains and trees, split backends.

The target leaves no choice to rounding, so every token is known beforehand.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import httpx
import pytest
from gpu_harness.config import GpuConfig
from gpu_harness.counters import decode_steps
from gpu_harness.eagle_draft import ensure_eagle_draft
from gpu_harness.requests import Request, ask_together
from harness.generate import REQUEST_SECONDS
from harness.prompts import all_prompts, walk

from tools.tiny_models import ModelPair


@dataclass(frozen=True)
class AlgorithmConfig(GpuConfig):
    """A configuration whose algorithm brings a draft of its own, or none."""

    def _speculation(self, models: ModelPair) -> list[str]:
        match self.algorithm:
            case "NGRAM":
                return ["--speculative-algorithm", "NGRAM"]
            case "EAGLE":
                draft = ensure_eagle_draft(models.target.parent)
                return ["--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", str(draft)]
        return super()._speculation(models)


def _eagle(topk: int, nodes: int, page_size: int) -> AlgorithmConfig:
    tree = f"--speculative-num-steps 3 --speculative-eagle-topk {topk} --speculative-num-draft-tokens {nodes}"
    return AlgorithmConfig("cycle-mla", "EAGLE", options=(*tree.split(), "--page-size", str(page_size)))


SPLIT = ("--prefill-attention-backend", "triton", "--decode-attention-backend", "ddtree_sm120")
SPECULATIVE = [
    _eagle(1, 4, page_size=16),
    _eagle(4, 8, page_size=1),
    AlgorithmConfig("cycle-mla", "NGRAM", options=("--page-size", "16")),
    AlgorithmConfig("cycle-mla", "DDTREE", options=(*SPLIT, "--page-size", "64")),
]
CONFIGS = [*SPECULATIVE, AlgorithmConfig("cycle-mla", None, options=("--page-size", "64"))]
servers = pytest.mark.parametrize("server", CONFIGS, indirect=True, ids=str)


@servers
@pytest.mark.parametrize("at_once", [1, 4])
def test_tokens_are_the_targets(server, at_once):
    draw, prompts = random.Random(at_once), all_prompts()
    requests = [Request(prompts[i % len(prompts)].ids, draw.randint(1, 120)) for i in range(6 * at_once)]
    before = decode_steps(server)
    answers = ask_together(server, requests, at_once)
    for request, answer in zip(requests, answers, strict=True):
        assert answer.ids == walk(request.ids[-1], request.new_tokens)
    assert (decode_steps(server) - before).eager == 0


@pytest.mark.parametrize("server", SPECULATIVE, indirect=True, ids=str)
def test_several_tokens_a_step(server):
    """The mask matters: a step that accepts several nodes has read them along their path."""
    (longest,) = ask_together(server, [Request(all_prompts()[0].ids, 100, ignore_eos=True)], 1)
    assert longest.steps <= 60


@servers
def test_server_info_says_what_runs(server, request):
    info = httpx.get(f"{server.url}/server_info", timeout=REQUEST_SECONDS).json()
    described = info["internal_states"][0]["ddtree_sm120"]
    assert described["decode_and_verify"] == "mla_tree_verify (CUDA)"
    split = SPLIT[0] in request.node.callspec.params["server"].options
    assert ("prefill" in described) is not split

# SPDX-License-Identifier: Apache-2.0
"""What a server chooses under the prefixes of another server's answers, and how sure it is of it, in batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
from harness.config import MODELS
from harness.generate import REQUEST_SECONDS
from harness.process import Server
from tokenizers import Tokenizer

from benchmark.accept import prompts
from gpu_harness.teacher import Agreement, compare
from tools.tiny_models import ensure

# A choice that is not among the reference's best few is no near tie.
BEST = 4


@dataclass(frozen=True)
class Told:
    """A greedy answer.

    Attributes:
        prompt, ids: token ids of what was asked and of the answer.
        logprobs: of the chosen tokens.
        best: at each place the log-probabilities of the ``BEST`` likeliest tokens, by id.
        steps: verify steps that it took; 0 without speculation.
    """

    prompt: tuple[int, ...]
    ids: list[int]
    logprobs: list[float]
    best: list[dict[int, float]]
    steps: int

    def lead(self, at: int, other: int) -> float:
        """By how much the choice at place ``at`` led the token ``other``, in log-probability."""
        return self.best[at][self.ids[at]] - self.best[at].get(other, -math.inf)


@dataclass
class Choices:
    """A server's choices beside the references.

    Attributes:
        agreement: places compared, and where the choices differ.
        leads: by how much, in log-probability, the reference's choice led the other one where they differ, by the
            reference's own account.
        differences: between the log-probabilities that both give to the token that both chose.
        tokens, steps: of all answers; tokens that a prefill chose left out.
    """

    agreement: Agreement = field(default_factory=Agreement)
    leads: list[float] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0

    def median_difference(self) -> float:
        return sorted(self.differences)[len(self.differences) // 2]


def texts(pair: str, count: int) -> list[tuple[int, ...]]:
    """Held-out code, docstrings and prose as token ids, then the same cut short."""
    tokenizer = Tokenizer.from_file(str(ensure(MODELS, pair).target / "tokenizer.json"))
    whole = [tuple(tokenizer.encode(prompt.text).ids) for prompt in prompts.load()]
    return [*whole, *(ids[: len(ids) // 2] for ids in whole)][:count]


def tell(server: Server, prompt: tuple[int, ...], new_tokens: int) -> Told:
    """A greedy answer of exactly ``new_tokens``."""
    body = {
        "input_ids": list(prompt),
        "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0.0, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": BEST,
    }
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    reply = answer.json()
    meta = reply["meta_info"]
    return Told(
        prompt,
        reply["output_ids"],
        [entry[0] for entry in meta["output_token_logprobs"]],
        [{token: logprob for logprob, token, *_ in entries} for entries in meta["output_top_logprobs"]],
        meta.get("spec_verify_ct", 0),
    )


def tell_together(server: Server, asked: Sequence[tuple[int, ...]], new_tokens: int, at_once: int) -> list[Told]:
    """Answers to many prompts, ``at_once`` in flight; in order."""
    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(lambda prompt: tell(server, prompt, new_tokens), asked))


def choices_beside(server: Server, references: Sequence[Told], at_once: int) -> Choices:
    """Force the prefixes of all ``references`` upon ``server``, ``at_once`` of them at a time."""
    with ThreadPoolExecutor(at_once) as threads:
        found = list(threads.map(lambda reference: _beside(server, reference), references))
    together = Choices()
    for one in found:
        together.agreement.compared += one.agreement.compared
        together.agreement.departures += one.agreement.departures
        together.leads += one.leads
        together.differences += one.differences
        together.tokens += one.tokens
        together.steps += one.steps
    return together


def _beside(server: Server, reference: Told) -> Choices:
    found = Choices()

    def generate(prefix: tuple[int, ...], new_tokens: int) -> list[int]:
        told = tell(server, prefix, new_tokens)
        start = len(prefix) - len(reference.prompt)
        for at, (ours, theirs) in enumerate(zip(told.ids, reference.ids[start:], strict=False)):
            if ours != theirs:
                break
            if at > 0:  # else a prefill's choice
                found.differences.append(abs(told.logprobs[at] - reference.logprobs[start + at]))
        found.tokens += len(told.ids) - 1
        found.steps += told.steps
        return told.ids

    compare(reference.prompt, reference.ids, generate, found.agreement)
    found.leads = [reference.lead(len(d.prefix) - len(reference.prompt), d.chosen) for d in found.agreement.departures]
    return found

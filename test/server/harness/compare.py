# SPDX-License-Identifier: Apache-2.0
"""Speculative generations held against those of plain decoding, prompt by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.config import MAX_RUNNING_REQUESTS
from harness.generate import Generation, flush, generate, generate_together
from harness.process import Server
from harness.prompts import Prompt


def ask_one_by_one(server: Server, prompts: Sequence[Prompt], *, cold: bool) -> dict[str, Generation]:
    """Answers by prompt name, one request at a time; ``cold`` empties the radix cache before each."""
    got = {}
    for prompt in prompts:
        if cold:
            flush(server)
        got[prompt.name] = generate(server, prompt.ids)
    return got


def ask_together(server: Server, prompts: Sequence[Prompt]) -> dict[str, Generation]:
    """Answers by prompt name, with as many requests in flight as the server runs."""
    answers = generate_together(server, [prompt.ids for prompt in prompts], MAX_RUNNING_REQUESTS)
    return {prompt.name: answer for prompt, answer in zip(prompts, answers, strict=True)}


def differences(
    got: Mapping[str, Generation], expected: Mapping[str, Generation]
) -> dict[str, tuple[list[int], list[int]]]:
    """Prompts that got other tokens, or ended otherwise: name -> (got, expected)."""
    return {
        name: (here.ids, expected[name].ids)
        for name, here in got.items()
        if (here.ids, here.finish) != (expected[name].ids, expected[name].finish)
    }

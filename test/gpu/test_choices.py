# SPDX-License-Identifier: Apache-2.0
"""Choices beside a reference, with servers of plain Python; needs no GPU."""

import math

import pytest
from gpu_harness import choices
from gpu_harness.choices import Told, choices_beside, tell_together

PROMPTS = [tuple(range(10 + i)) for i in range(5)]
SURE, LESS, LEAST, STEPS = -0.5, -0.75, -3.0, 16


def likely(prefix: tuple[int, ...]) -> dict[int, float]:
    first = (sum(prefix) * 7 + len(prefix)) % 101
    return {first: SURE, first + 200: LESS, first + 300: LEAST}


class Fake:
    """Takes another token than the likeliest behind prefixes of some lengths."""

    def __init__(self, other: dict[int, int], off: float = 0.0) -> None:
        self.other, self.off = other, off

    def tell(self, prompt: tuple[int, ...], new_tokens: int) -> Told:
        ids, logprobs, best = [], [], []
        for _ in range(new_tokens):
            here = likely((*prompt, *ids))
            best.append(here)
            logprobs.append(SURE + self.off)
            ids.append(next(iter(here)) + self.other.get(len(prompt) + len(ids), 0))
        return Told(prompt, ids, logprobs, best, STEPS)


@pytest.fixture(autouse=True)
def fake_servers(monkeypatch):
    monkeypatch.setattr(choices, "tell", Fake.tell)


def test_what_agrees():
    references = tell_together(Fake({}), PROMPTS, 64, at_once=2)
    assert [told.prompt for told in references] == PROMPTS
    found = choices_beside(Fake({}, off=0.25), references, at_once=2)
    assert found.agreement.compared == 63 * len(PROMPTS) and not found.agreement.departures
    assert found.differences == [0.25] * found.agreement.compared and found.median_difference() == 0.25
    assert (found.tokens, found.steps) == (63 * len(PROMPTS), STEPS * len(PROMPTS))


@pytest.mark.parametrize("other,lead", [(200, SURE - LESS), (300, SURE - LEAST), (400, math.inf)])
def test_the_lead_is_the_references(other, lead):
    references = tell_together(Fake({}), PROMPTS, 64, at_once=2)
    found = choices_beside(Fake({40: other}), references, at_once=2)
    assert found.leads == [lead] * len(PROMPTS)
    assert [len(d.prefix) for d in found.agreement.departures] == [40] * len(PROMPTS)
    # A place where they differ, and the prefills before and behind it, have no log-probabilities to be compared.
    assert len(found.differences) == (64 - 3) * len(PROMPTS)

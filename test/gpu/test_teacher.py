# SPDX-License-Identifier: Apache-2.0
"""Teacher forcing by generation, with a server of plain Python; needs no GPU."""

import pytest
from gpu_harness.teacher import Agreement, compare


def successor(prefix: tuple[int, ...]) -> int:
    return (sum(prefix) * 7 + len(prefix)) % 101


def generate_with(wrong_at: set[int], calls: list[int]):
    """Greedy tokens of a model that errs at some lengths of prefix."""

    def generate(ids: tuple[int, ...], new: int) -> list[int]:
        calls.append(len(ids))
        out = list(ids)
        for _ in range(new):
            out.append(successor(tuple(out)) + (1000 if len(out) in wrong_at else 0))
        return out[len(ids) :]

    return generate


@pytest.mark.parametrize("wrong_at", [set(), {20}, {20, 21}, {13, 40, 41, 42, 73}])
def test_every_error_behind_a_prefill_is_found(wrong_at):
    prompt = tuple(range(10))
    reference = generate_with(set(), [])(prompt, 64)
    agreement, calls = Agreement(), []
    compare(prompt, reference, generate_with(wrong_at, calls), agreement)
    # What a request's own prefill chooses is not a verify's choice.
    assert [len(d.prefix) for d in agreement.departures] == sorted(wrong_at - set(calls))
    assert agreement.compared == 64 - len(calls)
    for departure in agreement.departures:
        assert departure.reference == successor(departure.prefix)
        assert departure.chosen == departure.reference + 1000

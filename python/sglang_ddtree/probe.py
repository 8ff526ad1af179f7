# SPDX-License-Identifier: Apache-2.0
"""What the server answers to the fixed prompts, and how fast."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_ddtree.errors import ServerError
from sglang_ddtree.server import Answer, Server

REFUSED_AS_TOO_LONG = 400


@dataclass(frozen=True)
class Measurement:
    """The answers of one mode.

    Attributes:
        answers: by the prompt's number; a prompt that is too long for the server is missing.
        seconds: the median time of each answer, with its prompt in the cache.
        too_long: numbers of the prompts that the server refused.
    """

    answers: dict[int, Answer]
    seconds: dict[int, float] = field(default_factory=dict)
    too_long: tuple[int, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Of one request at a time, over all prompts."""
        return sum(len(self.answers[n].ids) for n in self.seconds) / max(sum(self.seconds.values()), 1e-9)

    @property
    def accept_length(self) -> float | None:
        """Mean tokens a verify step; None without speculation."""
        lengths = [answer.accept_length for answer in self.answers.values() if answer.accept_length is not None]
        return statistics.fmean(lengths) if lengths else None

    def record(self) -> dict[str, Any]:
        """For the JSON record."""
        return {
            "tokens_per_second": round(self.tokens_per_second, 2),
            "accept_length": self.accept_length,
            "too_long": list(self.too_long),
            "answers": {
                str(n): {
                    "ids": answer.ids,
                    "median_seconds": round(self.seconds[n], 4),
                }
                for n, answer in self.answers.items()
            },
        }


def measure(
    server: Server, prompts: Sequence[str], tokens: int, repeats: int, timeout: float, show: Callable[[str], None]
) -> Measurement:
    """Ask each prompt once for its answer, which also fills the cache, then ``repeats`` times for its speed.

    An answer may take ``timeout`` seconds.

    Raises:
        ServerError: the server fails on a prompt, other than by refusing it as too long.
    """
    answers: dict[int, Answer] = {}
    seconds: dict[int, float] = {}
    too_long: list[int] = []
    for number, prompt in enumerate(prompts):
        show(f"prompt {number + 1} of {len(prompts)}")
        try:
            answers[number] = server.generate(prompt, tokens, timeout, alternatives=True)
        except ServerError as error:
            if error.status == REFUSED_AS_TOO_LONG and answers:
                too_long.append(number)
                continue
            raise
        seconds[number] = statistics.median(server.generate(prompt, tokens, timeout).seconds for _ in range(repeats))
    return Measurement(answers, seconds, tuple(too_long))

# SPDX-License-Identifier: Apache-2.0
"""The fixed prompts: prose, code, lists, and one of a few thousand tokens, so that a long KV cache is read too."""

from __future__ import annotations

_SHORT = (
    "The capital of France is",
    "Explain in three sentences why the sky looks blue during the day and red in the evening.",
    'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n',
    "Translate to German, French and Spanish: The meeting was moved to Thursday at nine.",
    "List the planets of the solar system, one a line, each with its number of known moons:\n1. Mercury:",
    'Complete this JSON object: {"name": "Ada Lovelace", "born": 1815, "fields": [',
    "A train leaves at 14:05 and arrives at 17:50. The journey back takes 20 minutes longer. Step by step:",
)


def _long() -> str:
    rows = (f"Row {n}: {n} squared is {n * n}, its remainder modulo 7 is {n % 7}." for n in range(1, 181))
    return "\n".join(rows) + "\nRow 181:"


def fixed_prompts(count: int | None = None) -> list[str]:
    """The first ``count`` prompts, all by default; the long one is the last."""
    return [*_SHORT, _long()][:count]

# SPDX-License-Identifier: Apache-2.0
"""Teacher forcing through the verify path.

``/generate`` has no way to score given tokens with a verify. But a generation
that agrees with a reference for k tokens has made k choices under the
reference's own prefixes; where it departs, it is started anew behind that
place. So every place is compared under the same prefix, in few requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Generate = Callable[[tuple[int, ...], int], list[int]]


@dataclass(frozen=True)
class Departure:
    """A place where the choices differ: what stood before it, and both choices."""

    prefix: tuple[int, ...]
    reference: int
    chosen: int


@dataclass
class Agreement:
    """How many places were compared, and where the choices differ.

    The first choice after a prompt (or after a restart) is the prefill's and does not count.
    """

    compared: int = 0
    departures: list[Departure] = field(default_factory=list)

    @property
    def share(self) -> float:
        return 1 - len(self.departures) / self.compared


def compare(prompt: tuple[int, ...], reference: Sequence[int], generate: Generate, agreement: Agreement) -> None:
    """Add the places of one ``reference`` continuation of ``prompt`` to ``agreement``.

    Args:
        generate: greedy tokens after some ids, at most so many.
    """
    at = 0
    while at < len(reference):
        prefix = (*prompt, *reference[:at])
        chosen = generate(prefix, len(reference) - at)
        pairs = list(zip(reference[at:], chosen, strict=False))
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        # A place counts when a verify chose it: all but the first one of a request.
        agreement.compared += max(0, min(same + 1, len(pairs)) - 1)
        if same < len(pairs) and same > 0:
            agreement.departures.append(Departure((*prefix, *reference[at : at + same]), *pairs[same]))
        at += max(1, same + 1 if same < len(pairs) else len(pairs))

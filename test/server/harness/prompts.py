# SPDX-License-Identifier: Apache-2.0
"""Prompts for comparing speculative with plain decoding, as token ids."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from tokenizers import Tokenizer

from harness.config import CHUNKED_PREFILL_SIZE
from tools.tiny_models import cycle, tokenizer

NEW_TOKENS = 40


@cache
def shared_tokenizer() -> Tokenizer:
    """The tokenizer of all tiny models."""
    return tokenizer.train()


def encode(text: str) -> tuple[int, ...]:
    """Token ids of a text."""
    return tuple(shared_tokenizer().encode(text).ids)


def spell(text: str) -> tuple[int, ...]:
    """Token ids of a text, one for each character: no merges."""
    return tuple(shared_tokenizer().token_to_id(character) for character in text)


@dataclass(frozen=True)
class Prompt:
    """Token ids under a name that a failing test can show."""

    name: str
    ids: tuple[int, ...]


# Spelled so that on a cycle model the first block accepts as many drafts as the key
# says: the draft expects what came six tokens earlier, which is right up to there.
ACCEPTING = {
    0: "aaaaad",
    1: "eaaaad",
    2: "efaaad",
    3: "efdaad",
    4: "efdead",
    5: "hijghg",
    7: "efdefd",
}

_TEXTS = (
    "a",
    "b",
    "k",
    "0",
    "Count to nine: 0",
    "hello world",
    "The quick brown fox jumps over the lazy dog.",
    "def main():\n    return sum(range(10))\n",
    "bcbcbcbcbcbc",
    "pqrstuvpqrstuv klmno",
    "\N{SNOWMAN} and \N{GRINNING FACE}",
)


def short_prompts() -> list[Prompt]:
    """Prompts that fit one prefill chunk."""
    return [
        *(Prompt(repr(text), encode(text)) for text in _TEXTS),
        *(Prompt(f"{text} spelled", spell(text)) for text in ACCEPTING.values()),
        # A seed for which no answer of the random models hangs on a near tie.
        *_random_prompts((1, 2, 15, 16, 17, 31), seed=4),
    ]


def long_prompts() -> list[Prompt]:
    """Prompts prefilled in two to five chunks, chunk and page boundaries among their lengths."""
    chunk = CHUNKED_PREFILL_SIZE
    return _random_prompts((chunk, chunk + 1, 2 * chunk - 1, 5 * chunk - 3), seed=2)


def all_prompts() -> list[Prompt]:
    """Short and long ones."""
    return short_prompts() + long_prompts()


def _random_prompts(lengths: tuple[int, ...], seed: int) -> list[Prompt]:
    draw = random.Random(seed)
    vocab = range(tokenizer.MASK_ID + 1, shared_tokenizer().get_vocab_size())
    return [Prompt(f"{n} random tokens", tuple(draw.choices(vocab, k=n))) for n in lengths]


def walk(start: int, steps: int) -> list[int]:
    """What a cycle model says after token ``start``: up to ``steps`` ids, end of text included."""
    successors, out = cycle.successors(), []
    for _ in range(steps):
        out.append(successors[out[-1] if out else start])
        if out[-1] == tokenizer.EOS_ID:
            break
    return out

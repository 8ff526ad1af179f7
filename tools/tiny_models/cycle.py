# SPDX-License-Identifier: Apache-2.0
"""The graph of tokens that a ``cycle`` target walks, and the weights that make it walk.

The graph is chosen for the reader: on single characters it is

==========  =======================================================
``a``       a fixed point: the target repeats it
``bc``      b -> c -> b
``def``     a cycle of three, ``ghij`` of four, ``klmno`` of five,
            ``pqrstuv`` of seven
``0``..     0 -> 1 -> ... -> 9, then end of text
==========  =======================================================

All other tokens lie on cycles of length 1, 2, 3, 4, 5 and 7 in turn.
"""

from __future__ import annotations

from itertools import cycle as repeat

import torch

from tools.tiny_models import tokenizer
from tools.tiny_models.checkpoint import DTYPE, Weights

LETTER_CYCLES = ("a", "bc", "def", "ghij", "klmno", "pqrstuv")
DIGITS = "0123456789"

# One coordinate of the residual stream tells a real token (+) from a mask (-),
# so that a draft can attend to the one and not to the other.
FLAG_DIM = 0
FLAG = 4.0


def successors() -> list[int]:
    """The next token id of every id in ``range(VOCAB_SIZE)``."""
    vocab = tokenizer.train().get_vocab()
    nxt = list(range(tokenizer.VOCAB_SIZE))
    for letters in LETTER_CYCLES:
        _close(nxt, [vocab[c] for c in letters])
    digits = [vocab[c] for c in DIGITS]
    for here, there in zip(digits, [*digits[1:], tokenizer.EOS_ID], strict=True):
        nxt[here] = there

    special = set(range(tokenizer.MASK_ID + 1))
    taken = special | {vocab[c] for c in "".join(LETTER_CYCLES) + DIGITS}
    rest = [i for i in sorted(vocab.values()) if i not in taken]
    for length in repeat((1, 2, 3, 4, 5, 7)):
        group, rest = rest[:length], rest[length:]
        if not group:
            return nxt
        _close(nxt, group)
    raise AssertionError("unreachable")


def _close(nxt: list[int], group: list[int]) -> None:
    for here, there in zip(group, group[1:] + group[:1], strict=True):
        nxt[here] = there


def bind(weights: Weights, mixing: float) -> None:
    """Make a target prefer, after each token, that token's successor.

    The head reads the last token's embedding back out of the residual stream.
    ``mixing`` scales what attention and MLP add to that stream: near 0 the output
    depends on the last token only, near 1 on the whole context.
    """
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = tensor * mixing
            weights[name][FLAG_DIM] = 0
    embed = weights["model.embed_tokens.weight"]
    embed[:, FLAG_DIM] = FLAG
    embed[tokenizer.MASK_ID] = 0
    embed[tokenizer.MASK_ID, FLAG_DIM] = -FLAG

    head = torch.zeros_like(embed)
    for here, there in enumerate(successors()):
        # Several tokens may lead to one (both "9" and itself to end of text).
        head[there] += embed[here]
    head[:, FLAG_DIM] = 0
    # Scaled so that sampling at temperature 1 is neither greedy nor uniform.
    weights["lm_head.weight"] = (head * 0.08).to(DTYPE)

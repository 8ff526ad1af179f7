# SPDX-License-Identifier: Apache-2.0
"""Generation, and DFLASH decoding replayed on a text that is already known.

Speculative decoding does not change the output. So once the output is known, all
blocks can be drafted in one pass, at every position, and a walk over them tells
what each step of the server accepts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmark.tiny.drafter import Drafter
from benchmark.tiny.sizes import BLOCK
from benchmark.tiny.target import Cache, Target


@torch.no_grad()
def generate(
    target: Target, prompts: Tensor, new_tokens: int, temperature: Tensor, generator: torch.Generator
) -> Tensor:
    """Prompts and their continuations.

    Args:
        prompts: int64 [B, T].
        temperature: float32 [B]; 0 is greedy.

    Returns:
        int64 [B, T + new_tokens].
    """
    cache = Cache()
    greedy = temperature == 0
    divisor = torch.where(greedy, 1.0, temperature).unsqueeze(1)
    out = [prompts]
    for _ in range(new_tokens):
        states, _ = target.hidden(out[-1], cache)
        logits = target.lm_head(states[:, -1]).float()
        noise = torch.empty_like(logits).exponential_(generator=generator)
        drawn = ((logits / divisor).softmax(-1) / noise).argmax(-1)
        out.append(torch.where(greedy, logits.argmax(-1), drawn).unsqueeze(1))
    return torch.cat(out, 1)


@torch.no_grad()
def draft_logits(target: Target, drafter: Drafter, ids: Tensor, anchors: Tensor, chunk: int = 64) -> Tensor:
    """float32 logits [n, BLOCK - 1, vocabulary] of the blocks at ``anchors`` in the text ``ids`` [T]."""
    _, features = target.hidden(ids.unsqueeze(0))
    blocks = [
        target.lm_head(drafter(ids.unsqueeze(0), features, some, target.model.embed_tokens))[0].float()
        for some in anchors.split(chunk)
    ]
    return torch.cat(blocks)


def chain_steps(ids: list[int], prompt: int, drafts: list[list[int]]) -> list[int]:
    """Accepted drafts of each DFLASH step over the text ``ids``.

    Args:
        ids: prompt and output.
        prompt: length of the prompt; the first output token comes from the prefill.
        drafts: of the block at position ``prompt + i``, BLOCK - 1 tokens each.

    Returns:
        one number a step, for the steps whose whole block lies inside the text.
    """
    steps = []
    at = prompt
    while at + BLOCK <= len(ids):
        accepted = 0
        for guess, truth in zip(drafts[at - prompt], ids[at + 1 : at + BLOCK], strict=True):
            if guess != truth:
                break
            accepted += 1
        steps.append(accepted)
        at += accepted + 1
    return steps

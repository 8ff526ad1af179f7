# SPDX-License-Identifier: Apache-2.0
"""Held-out figures of a pair: perplexity, and the accept length of DFLASH on greedy output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.tiny.decoding import chain_steps, generate
from benchmark.tiny.drafter import Drafter
from benchmark.tiny.sizes import BLOCK
from benchmark.tiny.target import Target


@torch.no_grad()
def mean_loss(target: Target, ids: Tensor, length: int, batch: int = 16, limit: int | None = None) -> float:
    """Mean of -ln p over a text [n], in windows of ``length`` side by side; the first ``limit`` of them."""
    count = (len(ids) - 1) // length
    count = max(1, count if limit is None else min(count, limit))
    length = min(length, len(ids) - 1)
    inputs = ids[: count * length].view(count, length).long()
    truth = ids[1 : count * length + 1].view(count, length).long()
    losses = [
        F.cross_entropy(target(x).flatten(0, 1).float(), y.flatten(), reduction="sum")
        for x, y in zip(inputs.split(batch), truth.split(batch), strict=True)
    ]
    return float(torch.stack(losses).sum()) / truth.numel()


@torch.no_grad()
def greedy_texts(target: Target, prompts: Tensor, new_tokens: int = 128) -> Tensor:
    """``prompts`` [B, T] and what the target says after them, int64 [B, T + new_tokens]."""
    generator = torch.Generator(prompts.device).manual_seed(0)
    return generate(target, prompts, new_tokens, torch.zeros(len(prompts), device=prompts.device), generator)


@torch.no_grad()
def accept_length(target: Target, drafter: Drafter, texts: Tensor, prompt: int) -> float:
    """Mean tokens a DFLASH step, bonus included, over ``texts`` [B, T] that begin with ``prompt`` tokens of prompt."""
    anchors = torch.arange(prompt, texts.shape[1] - BLOCK + 1, device=texts.device)
    steps = []
    for ids in texts.split(8):
        _, features = target.hidden(ids)
        states = drafter(ids, features, anchors, target.model.embed_tokens)
        drafts = target.lm_head(states).argmax(-1).tolist()
        for text, draft in zip(ids.tolist(), drafts, strict=True):
            steps += chain_steps(text, prompt, draft)
    return 1 + sum(steps) / len(steps)

# SPDX-License-Identifier: Apache-2.0
"""The training models compute what decoding asks of them. That SGLang computes the same is a server test."""

from __future__ import annotations

import pytest
import torch

from benchmark.tiny.decoding import chain_steps, draft_logits, generate
from benchmark.tiny.drafter import Drafter, block_mask
from benchmark.tiny.loss import block_loss
from benchmark.tiny.schedule import Schedule
from benchmark.tiny.sizes import BLOCK, DRAFTERS, TARGETS, DrafterSize, TargetSize
from benchmark.tiny.target import Target
from benchmark.tiny.vocabulary import SIZE

MLA = TargetSize("mla", 32, 3, 2, 48, (0, 1), q_lora=16, kv_lora=24, nope=16, rope=8, value=12)
GQA = TargetSize("gqa", 32, 3, 4, 48, (0, 1), kv_heads=2, head_dim=16)
DRAFT = DrafterSize(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=48)


@pytest.fixture(params=[MLA, GQA], ids=lambda size: size.kind)
def pair(request) -> tuple[Target, Drafter]:
    torch.manual_seed(0)
    target = Target(request.param)
    # Louder than at the start of training, so that the choice of a token hangs on the whole text.
    torch.nn.init.normal_(target.model.embed_tokens.weight)
    return target.eval(), Drafter(DRAFT, 2 * request.param.hidden).eval()


def text(length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(2, SIZE, (length,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_a_token_does_not_see_later_ones(pair):
    target, _ = pair
    ids = text(20)
    other = ids.clone()
    other[12:] = text(8, seed=2)
    assert torch.equal(target(ids[None])[0, :12], target(other[None])[0, :12])
    assert not torch.equal(target(ids[None])[0, 12:], target(other[None])[0, 12:])


@torch.no_grad()
def test_generation_with_a_cache_is_the_argmax_of_the_whole_text(pair):
    target, _ = pair
    prompts = torch.stack([text(9), text(9, seed=2)])
    out = generate(target, prompts, 12, torch.zeros(2), torch.Generator())
    assert torch.equal(out[:, 9:], target(out)[:, 8:-1].argmax(-1))


@torch.no_grad()
def test_temperature_is_of_a_row(pair):
    target, _ = pair
    prompts = text(9).repeat(2, 1)
    draws = [
        generate(target, prompts, 12, torch.tensor([0.0, 1.0]), torch.Generator().manual_seed(seed)) for seed in (1, 2)
    ]
    assert torch.equal(draws[0][0], draws[1][0])
    assert not torch.equal(draws[0][1], draws[1][1])


def test_blocks_see_the_text_before_them_and_themselves():
    mask = block_mask(torch.tensor([3, 1]), 5)
    first, second = mask.split(BLOCK)
    assert first[:, :5].int().tolist() == [[1, 1, 1, 0, 0]] * BLOCK
    assert second[:, :5].int().tolist() == [[1, 0, 0, 0, 0]] * BLOCK
    assert first[:, 5 : 5 + BLOCK].all() and not first[:, 5 + BLOCK :].any()
    assert second[:, 5 + BLOCK :].all() and not second[:, 5 : 5 + BLOCK].any()


def test_a_block_does_not_hang_on_other_blocks_nor_on_what_follows(pair):
    target, drafter = pair
    ids = text(40)
    together = draft_logits(target, drafter, ids, torch.tensor([5, 20, 11]))
    alone = draft_logits(target, drafter, ids, torch.tensor([20]))
    torch.testing.assert_close(together[1], alone[0])
    shorter = draft_logits(target, drafter, ids[:21], torch.tensor([20]))
    torch.testing.assert_close(shorter[0], alone[0])
    # It does hang on the token at its anchor and on those before.
    for at in (20, 19):
        other = ids.clone()
        other[at] = 2 + (other[at] - 1) % (SIZE - 2)
        assert not torch.allclose(draft_logits(target, drafter, other, torch.tensor([20])), alone, atol=1e-4)


def test_steps_of_a_chain():
    """Three drafts right, then none, then all fifteen."""
    ids = list(range(100, 140))
    wrong = [0] * (BLOCK - 1)
    right = {at: ids[at + 1 : at + BLOCK] for at in range(len(ids))}
    drafts = [wrong for _ in ids]
    drafts[0] = [*right[4][:3], *wrong[3:]]
    drafts[4] = wrong
    drafts[5] = right[9]
    # Prompt of 4: steps at 4, 8, 9; the next block would begin at 25 and end at 40, which is the end of the text.
    drafts[21] = wrong
    assert chain_steps(ids, 4, drafts) == [3, 0, 15]
    assert chain_steps([*ids, 140], 4, drafts) == [3, 0, 15, 0]


def test_a_run_that_was_shortened_is_the_run_of_as_many_steps():
    timed = Schedule(steps=10_000, seconds=20)
    timed.fit(96, elapsed=2)
    assert timed.steps == 900
    counted = Schedule(steps=900)
    assert [timed.rate(step) for step in range(900)] == [counted.rate(step) for step in range(900)]
    # Up to there the rate did not hang on the number.
    assert [Schedule(10_000).rate(step) for step in range(96)] == [counted.rate(step) for step in range(96)]
    assert counted.rate(0) == 0.01 and counted.rate(99) == counted.rate(100) == 1 and counted.rate(899) < 0.002


def test_a_run_is_not_made_longer():
    schedule = Schedule(steps=1000, seconds=100)
    schedule.fit(96, elapsed=1)
    assert schedule.steps == 1000


def test_the_loss_of_a_block():
    """Against its definition, term by term; and its second part is what moves the expected accept length."""
    logits = torch.randn(2, BLOCK - 1, 7, generator=torch.Generator().manual_seed(1), requires_grad=True)
    truth = torch.randint(7, (2, BLOCK - 1), generator=torch.Generator().manual_seed(2))
    p = logits.softmax(-1).gather(-1, truth.unsqueeze(-1))[..., 0]
    expected = p.cumprod(-1).sum(-1).mean()
    decay = torch.exp(-torch.arange(BLOCK - 1) / 4)
    first = -(p.log() * decay / decay.sum()).sum(-1).mean()
    whole, one, other = (
        torch.autograd.grad(value, logits, retain_graph=True)[0]
        for value in (block_loss(logits, truth), first, expected)
    )
    torch.testing.assert_close(whole, one - 0.1 * other)


@pytest.mark.parametrize("kind", TARGETS)
def test_the_last_layer_is_not_captured(kind):
    """SGLang takes features on entry to the layer behind."""
    assert max(TARGETS[kind].captured) < TARGETS[kind].layers - 1
    assert DRAFTERS[kind].hidden == TARGETS[kind].hidden

# SPDX-License-Identifier: Apache-2.0
"""The training models compute what decoding asks of them. That SGLang computes the same is a server test."""

from __future__ import annotations

import math

import pytest
import torch

from benchmark.tiny import training
from benchmark.tiny.decoding import chain_steps, draft_logits, generate
from benchmark.tiny.drafter import Drafter, block_mask
from benchmark.tiny.sizes import BLOCK, DRAFTERS, TARGETS, DrafterSize, TargetSize
from benchmark.tiny.target import Target
from benchmark.tiny.training import Lesson, Recipe, Studied, Windows
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


def test_training_lowers_the_loss_and_repeats_itself():
    """Twice from one seed: the same weights; and the drafter learns a text that repeats."""
    ids = torch.arange(2, 34).repeat(20).to(torch.int32)
    recipe = Recipe(steps=30, seconds=math.inf, length=48, batch=4, peak=1e-1)
    ends = []
    for _ in range(2):
        torch.manual_seed(3)
        target, drafter = Target(GQA), Drafter(DRAFT, 2 * GQA.hidden)
        windows = Windows(ids, 5)
        curve = training.train_target(target, windows, recipe, lambda: 0.0, longest=48)
        target.requires_grad_(False)
        studied = Studied(target, windows.draw(12, 48))
        choice = torch.Generator().manual_seed(4)
        drawn = training.train_drafter(
            drafter, target, lambda _, s=studied, c=choice: Lesson(*s.draw(4, c), 3), recipe, lambda: 0.0, 6
        )
        ends.append([*target.state_dict().values(), *drafter.state_dict().values()])
    assert curve.steps == drawn.steps == 30 and not curve.by_clock
    assert curve.points[-1][1] < curve.points[0][1] - 1
    assert drawn.points[-1][1] < drawn.points[0][1] - 1
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_the_clock_ends_a_run_with_a_rate_of_zero(monkeypatch):
    from benchmark.tiny import schedule

    now = 0.0
    monkeypatch.setattr(schedule.time, "monotonic", lambda: now)
    run = schedule.Schedule(steps=1000, seconds=10)
    run.step = 500
    assert run.done == 0.5 and run.rate() == 0.5 and not run.by_clock
    now = 9.0
    assert run.done == 0.9 and run.rate() == pytest.approx(0.1) and run.by_clock
    now = 11.0
    assert run.done > 1 and run.rate() == 0


@pytest.mark.parametrize("kind", TARGETS)
def test_the_last_layer_is_not_captured(kind):
    """SGLang takes features on entry to the layer behind."""
    assert max(TARGETS[kind].captured) < TARGETS[kind].layers - 1
    assert DRAFTERS[kind].hidden == TARGETS[kind].hidden

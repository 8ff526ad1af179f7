# SPDX-License-Identifier: Apache-2.0
"""The two training loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from benchmark.tiny.decoding import generate
from benchmark.tiny.drafter import Drafter
from benchmark.tiny.schedule import Schedule, optimizer
from benchmark.tiny.sizes import BLOCK, LONGEST
from benchmark.tiny.target import Target

# An early error costs all that follows. The DFlash paper takes 7 for blocks of 16 and 4 for blocks of 8; small models
# accept about as much as those.
_DECAY = 4.0


@dataclass(frozen=True)
class Recipe:
    """Settings of one training run.

    Attributes:
        steps, seconds: the run ends at whichever comes first.
        length, batch: tokens a sequence, sequences a step.
        peak, decay: learning rate and weight decay of AdamW.
    """

    steps: int
    seconds: float
    length: int
    batch: int
    peak: float
    decay: float = 0.1


@dataclass
class Curve:
    """What a run logged.

    Attributes:
        points: (step, mean loss since the last point).
        checks: (step, held-out figure).
    """

    recipe: Recipe
    points: list[tuple[int, float]] = field(default_factory=list)
    checks: list[tuple[int, float]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    by_clock: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Windows:
    """Random windows of one long row of token ids, the same in every run of a seed."""

    def __init__(self, ids: Tensor, seed: int) -> None:
        self._ids = ids
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self, batch: int, length: int) -> Tensor:
        """int64 [batch, length] on the ids' device."""
        starts = torch.randint(len(self._ids) - length, (batch, 1), generator=self._generator)
        where = starts + torch.arange(length)
        return self._ids[where.to(self._ids.device)].long()


def train_target(
    target: Target, windows: Windows, recipe: Recipe, check: Callable[[], float], longest: int = LONGEST
) -> Curve:
    """Next-token training. Every eighth step has windows of ``longest`` tokens, so that the whole context works."""

    def loss_of_step(step: int) -> tuple[Tensor, int]:
        length = longest if step % 8 == 7 else recipe.length
        batch = max(1, recipe.batch * recipe.length // length)
        ids = windows.draw(batch, length + 1)
        logits = target(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()), batch * length

    return _run(target, recipe, loss_of_step, check, "target")


class Studied:
    """Texts with the target's features of them, computed once and kept in bf16 beside them."""

    def __init__(self, target: Target, ids: Tensor) -> None:
        """``ids``: int64 [texts, length]."""
        self._ids = ids
        rows = max(1, 32_768 // ids.shape[1])
        with torch.no_grad(), torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            self._features = torch.cat([target.hidden(some)[1].bfloat16() for some in ids.split(rows)])

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``count`` random texts and their features in float32."""
        rows = torch.randint(len(self._ids), (count,), generator=generator).to(self._ids.device)
        return self._ids[rows], self._features[rows].float()


@dataclass(frozen=True)
class Lesson:
    """What a drafter's step learns from: texts, the target's features of them, how many anchors to draw."""

    ids: Tensor
    features: Tensor
    blocks: int


def train_drafter(
    drafter: Drafter,
    target: Target,
    lessons: Callable[[int], Lesson],
    recipe: Recipe,
    check: Callable[[], float],
    seed: int,
) -> Curve:
    """Block diffusion on the target's features: random anchors, and all masks of their blocks predicted at once.

    Args:
        lessons: gives what a step learns from.
    """
    draw = torch.Generator().manual_seed(seed)
    weights = torch.exp(-torch.arange(BLOCK - 1) / _DECAY)
    share = (weights / weights.sum()).to(next(drafter.parameters()).device)

    def loss_of_step(step: int) -> tuple[Tensor, int]:
        lesson = lessons(step)
        ids = lesson.ids
        anchors = (1 + torch.randperm(ids.shape[1] - BLOCK, generator=draw)[: lesson.blocks]).to(ids.device)
        states = drafter(ids, lesson.features, anchors, target.model.embed_tokens)
        truth = ids[:, anchors.unsqueeze(1) + torch.arange(1, BLOCK, device=ids.device)]
        losses = F.cross_entropy(target.lm_head(states).flatten(0, 2).float(), truth.flatten(), reduction="none")
        by_place = losses.unflatten(0, truth.shape).mean((0, 1))
        return (by_place * share).sum(), truth.numel()

    return _run(drafter, recipe, loss_of_step, check, "drafter")


def continuations(
    target: Target, windows: Windows, *, prompts: int, prompt: int, new_tokens: int, batch: int, seed: int
) -> Tensor:
    """int64 [prompts, prompt + new_tokens] that the target wrote itself: half greedily, half at temperature 1."""
    device = next(target.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    temperature = torch.tensor([0.0, 1.0], device=device).repeat(batch // 2)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        rounds = [
            generate(target, windows.draw(batch, prompt), new_tokens, temperature, generator)
            for _ in tqdm(range(math.ceil(prompts / batch)), desc="the target writes", mininterval=5)
        ]
    return torch.cat(rounds)


def _run(
    model: nn.Module,
    recipe: Recipe,
    loss_of_step: Callable[[int], tuple[Tensor, int]],
    check: Callable[[], float],
    name: str,
) -> Curve:
    """Train ``model``; every twentieth of the way a point of the curve and a check, which may save what there is."""
    curve = Curve(recipe)
    schedule = Schedule(recipe.steps, recipe.seconds)
    adam = optimizer(model, recipe.peak, recipe.decay)
    device = next(model.parameters()).device
    since, count, next_check = torch.zeros((), device=device), 0, 0.05
    with tqdm(total=100, desc=name, unit="%", mininterval=5, bar_format="{l_bar}{bar}| {elapsed}{postfix}") as bar:
        while schedule.done < 1:
            for group in adam.param_groups:
                group["lr"] = recipe.peak * schedule.rate()
            model.train()
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss, tokens = loss_of_step(schedule.step)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            adam.zero_grad(set_to_none=True)
            schedule.step += 1
            curve.tokens += tokens
            since += loss.detach()
            count += 1
            bar.update(min(100 * schedule.done, 100) - bar.n)
            if schedule.done >= next_check or schedule.done >= 1:
                curve.points.append((schedule.step, float(since) / count))
                model.eval()
                curve.checks.append((schedule.step, check()))
                bar.set_postfix_str(
                    f"step {schedule.step}, loss {curve.points[-1][1]:.3f}, held out {curve.checks[-1][1]:.3f}"
                )
                since.zero_()
                count = 0
                next_check = schedule.done + 0.05
    model.eval()
    curve.steps, curve.seconds, curve.by_clock = schedule.step, schedule.elapsed, schedule.by_clock
    return curve

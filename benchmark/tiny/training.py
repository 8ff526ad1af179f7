# SPDX-License-Identifier: Apache-2.0
"""The two training runs."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from benchmark.tiny.decoding import generate
from benchmark.tiny.drafter import Drafter
from benchmark.tiny.loss import block_loss
from benchmark.tiny.schedule import Schedule, optimizer
from benchmark.tiny.sizes import BLOCK, LONGEST
from benchmark.tiny.steps import Step, Variety
from benchmark.tiny.target import Target

# One step in eight has windows of the whole context.
_CYCLE = 8
# Parts of a run: after each there is a point of the curve, or a check, which may save what there is.
_POINTS, _CHECKS = 50, 10


@dataclass(frozen=True)
class Recipe:
    """Settings of one training run.

    Attributes:
        steps: at most; ``seconds`` may lower the number once, see :class:`Schedule`.
        length, batch: tokens a sequence, sequences a step.
        peak, decay: learning rate and weight decay of AdamW.
        graphs: replay CUDA graphs; only on a GPU.
    """

    steps: int
    length: int
    batch: int
    peak: float
    decay: float = 0.1
    seconds: float = math.inf
    graphs: bool = False


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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        recipe = {key: value for key, value in asdict(self.recipe).items() if key != "seconds"}
        return asdict(self) | {"recipe": recipe}


Check = Callable[[Curve], float]


class Windows:
    """Random windows of one long row of token ids, the same in every run of a seed."""

    def __init__(self, ids: Tensor, seed: int) -> None:
        self._ids = ids
        self._generator = torch.Generator().manual_seed(seed)

    def starts(self, count: int, batch: int, length: int) -> Tensor:
        """int64 [count, batch], on the CPU."""
        return torch.randint(len(self._ids) - length, (count, batch), generator=self._generator)

    def at(self, starts: Tensor, length: int) -> Tensor:
        """int64 [batch, length]; ``starts`` [batch] on the ids' device."""
        where = starts.unsqueeze(1) + torch.arange(length, device=starts.device)
        return self._ids.index_select(0, where.flatten()).view(where.shape).long()

    def draw(self, batch: int, length: int) -> Tensor:
        """int64 [batch, length] on the ids' device."""
        return self.at(self.starts(1, batch, length)[0].to(self._ids.device), length)


def make_repeatable() -> None:
    """Only kernels that give the same result each time. Call it before anything runs on a GPU."""
    # cuBLAS is only repeatable with a workspace of fixed size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    # cuDNN's attention is not repeatable, and in generation it makes a plan for every length.
    torch.backends.cuda.enable_cudnn_sdp(False)


def train_target(target: Target, windows: Windows, recipe: Recipe, check: Check, longest: int = LONGEST) -> Curve:
    """Next-token training. Every eighth step has windows of ``longest`` tokens, so that the whole context works."""

    def of_length(length: int) -> Variety:
        batch = max(1, recipe.batch * recipe.length // length)

        def loss(starts: Tensor) -> Tensor:
            ids = windows.at(starts, length + 1)
            logits = target(ids[:, :-1])
            return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

        return Variety(lambda count: windows.starts(count, batch, length + 1), loss, batch * length)

    return _run(target, recipe, of_length(recipe.length), of_length(longest), check, "target")


class Studied:
    """Texts with the target's features of them, computed once and kept in bf16 beside them."""

    def __init__(self, target: Target, ids: Tensor) -> None:
        """``ids``: int64 [texts, length]."""
        self.ids = ids
        rows = max(1, 32_768 // ids.shape[1])
        with torch.no_grad(), torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            self.features = torch.cat([target.hidden(some)[1].bfloat16() for some in ids.split(rows)])


@dataclass(frozen=True)
class Texts:
    """Texts of one source, and how many of them a step takes."""

    studied: Studied
    a_step: int


def train_drafter(
    drafter: Drafter,
    target: Target,
    short: list[Texts],
    long: list[Texts],
    recipe: Recipe,
    blocks: int,
    check: Check,
    seed: int,
) -> Curve:
    """Block diffusion on the target's features: random anchors, and all masks of their blocks predicted at once.

    Every eighth step takes long texts, so that the drafter knows all positions and distances.

    Args:
        short: what a usual step takes; all of one length.
        long: what every eighth step takes; these get twice as many blocks each.
        blocks: of a text, the same anchors for all texts of a step.
    """
    generator = torch.Generator().manual_seed(seed)

    def of(taken: list[Texts], blocks: int) -> Variety:
        length = taken[0].studied.ids.shape[1]
        counts = [texts.a_step for texts in taken]

        def draw(count: int) -> Tensor:
            rows = [
                torch.randint(len(texts.studied.ids), (count, texts.a_step), generator=generator) for texts in taken
            ]
            # Distinct anchors, none at 0, and the whole block inside the text.
            order = torch.rand(count, length - BLOCK, generator=generator).argsort(-1)
            return torch.cat([*rows, 1 + order[:, :blocks]], 1)

        def loss(numbers: Tensor) -> Tensor:
            *rows, anchors = numbers.split([*counts, blocks])
            chosen = list(zip(taken, rows, strict=True))
            ids = torch.cat([texts.studied.ids.index_select(0, some) for texts, some in chosen])
            features = torch.cat([texts.studied.features.index_select(0, some) for texts, some in chosen])
            states = drafter(ids, features.float(), anchors, target.model.embed_tokens)
            where = anchors.unsqueeze(1) + torch.arange(1, BLOCK, device=anchors.device)
            truth = ids.index_select(1, where.flatten()).view(len(ids), blocks, BLOCK - 1)
            return block_loss(target.lm_head(states), truth)

        return Variety(draw, loss, sum(counts) * blocks * (BLOCK - 1))

    return _run(drafter, recipe, of(short, blocks), of(long, 2 * blocks), check, "drafter")


def continuations(
    target: Target, windows: Windows, *, prompts: int, prompt: int, new_tokens: int, batch: int, seed: int
) -> Tensor:
    """int64 [prompts, prompt + new_tokens] that the target wrote itself.

    Of four texts, three are greedy and one is at temperature 1, and they lie in this order.
    """
    device = next(target.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    temperature = torch.tensor([0.0, 0.0, 0.0, 1.0], device=device).repeat(batch // 4)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        rounds = [
            generate(target, windows.draw(batch, prompt), new_tokens, temperature, generator)
            for _ in tqdm(range(math.ceil(prompts / batch)), desc="the target writes", mininterval=5)
        ]
    return torch.cat(rounds)


@contextlib.contextmanager
def _own_stream(graphs: bool) -> Iterator[None]:
    """A CUDA graph is captured on a stream that is not the default one, and autograd wants to stay on it."""
    if not graphs:
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def _run(model: nn.Module, recipe: Recipe, usual: Variety, every_eighth: Variety, check: Check, name: str) -> Curve:
    """Train ``model``; every eighth step is of another variety than the usual one."""
    curve = Curve(recipe)
    schedule = Schedule(recipe.steps, recipe.seconds)
    adam = optimizer(model, recipe.decay)
    total = torch.zeros((), device=next(model.parameters()).device)

    def passed(parts: int) -> bool:
        """Whether the last step ended one of so many parts of the run."""
        return curve.steps * parts // schedule.steps > (curve.steps - 1) * parts // schedule.steps

    with _own_stream(recipe.graphs), tqdm(total=recipe.steps, desc=name, mininterval=5) as bar:
        steps = [Step(model, adam, variety, total, graphs=recipe.graphs) for variety in (usual, every_eighth)]
        began, last = time.monotonic(), 0
        timed = began, 0
        model.train()
        for step in itertools.count():
            which = step % _CYCLE == _CYCLE - 1
            for group in adam.param_groups:
                group["lr"].fill_(recipe.peak * schedule.rate(step))
            steps[which]()
            curve.steps, curve.tokens = step + 1, curve.tokens + (usual, every_eighth)[which].tokens
            bar.update()
            # The first steps set things up: a graph of either variety stands after four cycles.
            if curve.steps == 5 * _CYCLE:
                total.item()
                timed = time.monotonic(), curve.steps
            if curve.steps == 12 * _CYCLE and math.isfinite(recipe.seconds):
                total.item()
                schedule.fit(curve.steps - timed[1], time.monotonic() - timed[0])
                bar.total = schedule.steps
                tqdm.write(f"{name}: {schedule.steps} steps")
            if passed(_POINTS):
                curve.points.append((curve.steps, total.item() / (curve.steps - last)))
                curve.seconds = time.monotonic() - began
                total.zero_()
                last = curve.steps
            if passed(_CHECKS):
                model.eval()
                curve.checks.append((curve.steps, check(curve)))
                model.train()
                bar.set_postfix_str(f"loss {curve.points[-1][1]:.3f}, held out {curve.checks[-1][1]:.3f}")
            if curve.steps >= schedule.steps:
                break
    model.eval()
    curve.seconds = time.monotonic() - began
    return curve

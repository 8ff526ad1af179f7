# SPDX-License-Identifier: Apache-2.0
"""Training gives the same weights again: on a CPU, and on a GPU if there is one, with CUDA graphs and without."""

from __future__ import annotations

import pytest
import torch

from benchmark.tiny import training
from benchmark.tiny.drafter import Drafter
from benchmark.tiny.sizes import DrafterSize, TargetSize
from benchmark.tiny.target import Target
from benchmark.tiny.training import Curve, Recipe, Studied, Texts, Windows

SIZES = {
    "mla": TargetSize("mla", 32, 3, 2, 48, (0, 1), q_lora=16, kv_lora=24, nope=16, rope=8, value=16),
    "gqa": TargetSize("gqa", 32, 3, 4, 48, (0, 1), kv_heads=2, head_dim=16),
}
DRAFT = DrafterSize(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=48)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(autouse=True)
def repeatable():
    training.make_repeatable()
    yield
    torch.use_deterministic_algorithms(False)


def trained(kind: str, device: str, graphs: bool = False) -> tuple[list[torch.Tensor], Curve, Curve]:
    """All weights of a pair after a short run, on the CPU, and the curves of its halves.

    The text repeats, so that there is something to learn.
    """
    ids = torch.arange(2, 34).repeat(20).to(torch.int32).to(device)
    recipe = Recipe(steps=40, length=48, batch=4, peak=1e-1, graphs=graphs)
    torch.manual_seed(3)
    target = Target(SIZES[kind], dropout=0.1).to(device)
    drafter = Drafter(DRAFT, 2 * DRAFT.hidden).to(device)
    windows = Windows(ids, 5)
    first = training.train_target(target, windows, recipe, lambda _: 0.0, longest=96)
    target.requires_grad_(False)
    written = training.continuations(target, windows, prompts=4, prompt=16, new_tokens=32, batch=4, seed=1)
    short = [Texts(Studied(target, written), 1), Texts(Studied(target, windows.draw(12, 48)), 3)]
    long = [Texts(Studied(target, windows.draw(12, 96)), 2)]
    second = training.train_drafter(drafter, target, short, long, recipe, 3, lambda _: 0.0, 6)
    return [v.cpu() for model in (target, drafter) for v in model.state_dict().values()], first, second


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", SIZES)
def test_two_runs_give_the_same_weights(kind, device):
    """On a GPU once with CUDA graphs and once without, which must not matter either."""
    weights, *curves = trained(kind, device, graphs=device == "cuda")
    again, *_ = trained(kind, device)
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))
    for curve in curves:
        assert curve.steps == 40
        assert curve.points[-1][1] < curve.points[0][1] - 1

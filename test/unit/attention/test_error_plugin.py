# SPDX-License-Identifier: Apache-2.0
"""The reference that ``test/gpu/test_server_error.py`` holds both kernels against: it is right, and it tells wrong."""

from __future__ import annotations

import math

import error_scene
import pytest
import torch
from ddtree_error_reference import read_words, tree_attention
from ddtree_error_totals import ErrorTotals
from error_scene import NODES, mla_scene
from scene import MLA, mask_words, random_tree
from sglang.srt.layers.attention.ddtree_sm120 import cpu_backend
from sglang.srt.layers.attention.ddtree_sm120.cpu_mla_verify import CpuMlaVerify

PREFIX = [0, 1, 40, 15, 129]
BF16 = 6e-3  # the tolerance of the test in a server


def _arguments(scene, info, max_keys=160, padding=2) -> dict:
    """Of the reference, with padded requests behind the real ones and rows of NaN between them."""
    real, size = len(scene.prefix), len(scene.prefix) + padding
    for request, keys in enumerate(scene.keys):
        scene.pool.kv_buffer[0][scene._slots(request)] = keys
    slots = torch.full((size, max_keys), 2**31 - 1)
    slots[:real] = scene.table[scene.rows, :max_keys].long()
    prefix_lens, tree = torch.full((size,), -1), torch.zeros(size, NODES, NODES, dtype=torch.bool)
    prefix_lens[:real] = torch.tensor(scene.prefix)
    tree[:real] = read_words(info.mask_words, NODES)
    q = torch.full((size, NODES, *scene.q.shape[1:]), float("nan"), dtype=scene.q.dtype)
    q[:real] = scene.q.unflatten(0, (real, NODES))
    return {
        "q": q,
        "rows": scene.pool.kv_buffer[0].squeeze(1),
        "slots": slots,
        "prefix_lens": prefix_lens,
        "tree": tree,
        "scale": scene.layer().scaling,
        "latent_dim": MLA.value_dim,
    }


def _error(out: torch.Tensor, scene) -> float:
    expected = scene.expected()
    return float((out[: len(scene.prefix)].flatten(0, 1) - expected).norm() / expected.norm())


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("seed", range(4))
def test_the_reference_is_dense_attention_request_by_request(seed, page_size):
    scene, info = mla_scene(PREFIX, page_size, seed=seed)
    assert _error(tree_attention(**_arguments(scene, info)), scene) < 1e-12


def test_words_of_many_nodes():
    import random

    trees = [random_tree(random.Random(seed), 70) for seed in range(3)]
    sees = read_words(mask_words(trees), 70)
    for tree, matrix in zip(trees, sees, strict=True):
        for node, parent in enumerate(tree):
            above = matrix[parent] if parent >= 0 else torch.zeros(70, dtype=torch.bool)
            assert torch.equal(matrix[node], above | (torch.arange(70) == node))


def _other_tree(arguments):
    arguments["tree"] = torch.ones(NODES, NODES, dtype=torch.bool).tril().expand_as(arguments["tree"])


def _shorter(arguments):
    arguments["prefix_lens"][2:5] -= 1


def _other_slot(arguments):
    arguments["slots"][2, 7] = arguments["slots"][3, 3]


def _unscaled(arguments):
    arguments["scale"] *= 1.1


@pytest.mark.parametrize("change", [_other_tree, _shorter, _other_slot, _unscaled])
def test_wrong_inputs_show(change):
    scene, info = mla_scene(PREFIX)
    arguments = _arguments(scene, info)
    change(arguments)
    assert _error(tree_attention(**arguments), scene) > BF16


def test_totals():
    generator = torch.Generator().manual_seed(1)
    reference = torch.randn(4, 2, 3, 8, dtype=torch.float64, generator=generator)
    ours, delegate = reference.clone(), reference.clone()
    ours[0, 1, 2, 3] += 0.5
    delegate[1, 0, 0, 0] -= 0.25
    delegate[0, 0, 1, 5] = float("inf")
    for output in (ours, delegate, reference):
        output[2:] = float("nan")  # padding, and a request that is left out
    real, fits = torch.tensor([True, True, True, False]), torch.tensor([True, True, False, True])
    totals = ErrorTotals(2, 5, "cpu")
    assert totals.report()["ours"]["error"] is None
    for _ in range(3):
        for layer in (5, 6):
            totals.add(layer, reference, ours.flatten(1), delegate, real, fits)
    totals.add(5, reference, ours, delegate, torch.zeros(4, dtype=torch.bool), fits)
    found, size = totals.report(), float(reference[:2].norm())
    assert (found["steps"], found["rows"], found["rows_left_out"]) == (3, 3 * 2 * 2 * 2 * 3, 3 * 2 * 2 * 3)
    assert found["reference_rows_not_finite"] == 0
    assert found["ours"]["error"] == pytest.approx(0.5 / size)
    assert found["ours"]["error_of_layers"] == pytest.approx([0.5 / size] * 2)
    assert (found["ours"]["largest"], found["delegate"]["largest"]) == pytest.approx((0.5, 0.25))
    assert found["delegate"]["error"] == pytest.approx(0.25 / size)
    assert (found["ours"]["rows_not_finite"], found["delegate"]["rows_not_finite"]) == (0, 6)
    assert found["rounded"] == {"error": 0, "error_of_layers": [0, 0], "largest": 0, "rows_not_finite": 0}
    totals.reset()
    assert totals.report()["steps"] == 0 and totals.report()["rows"] == 0


# -- the whole plugin, in the backend for CPUs --------------------------------------


@pytest.fixture
def step(monkeypatch):
    """step(scene, info): one step of ``validate`` beside the plugin, and what it reports."""
    error_scene.hook(monkeypatch.setattr)

    def run(scene, info) -> dict:
        runner, switch = scene.runner(), error_scene.validating_switch()
        runner.page_size, runner.verify_switch = scene.page_size, switch
        scene.runner = lambda: runner
        scene.run(info)
        return error_scene.report(switch)

    return run


def test_both_are_near_the_reference(step):
    found = step(*mla_scene(PREFIX, page_size=16))
    reference = found.pop("reference")
    assert (reference["steps"], reference["rows"]) == (found["steps"], found["rows"]) == (1, len(PREFIX) * NODES * 3)
    for name in ("ours", "delegate"):
        assert 5e-4 < reference["rounded"]["error"] <= reference[name]["error"] < BF16
        assert reference[name]["rows_not_finite"] == 0


def test_a_wrong_kernel_of_ours(step, monkeypatch):
    twin = CpuMlaVerify.attend

    def wrong(self, *arguments):
        out = twin(self, *arguments)
        out[3] *= 1.5
        out[5, 0, 0] = float("nan")
        return out

    monkeypatch.setattr(CpuMlaVerify, "attend", wrong)
    reference = step(*mla_scene(PREFIX))["reference"]
    assert reference["ours"]["error"] > BF16 > reference["delegate"]["error"]
    assert (reference["ours"]["rows_not_finite"], reference["delegate"]["rows_not_finite"]) == (1, 0)


def test_a_wrong_delegate(step, monkeypatch):
    attend = cpu_backend.attend

    def wrong(group, q, key_buffer, value_buffer, out, params):
        attend(group, q, key_buffer, value_buffer, out, params)
        out.mul_(1.02)

    monkeypatch.setattr(cpu_backend, "attend", wrong)
    reference = step(*mla_scene(PREFIX))["reference"]
    assert reference["delegate"]["error"] > BF16 > reference["ours"]["error"]


def test_inputs_that_both_kernels_take_wrongly(step, monkeypatch):
    """A tree that the backend misreads makes both of them wrong alike; the reference has its own."""
    chain = torch.ones(NODES, NODES, dtype=torch.bool).tril()

    def misread(info, prefix_lens):
        return chain.expand(prefix_lens.numel(), -1, -1)

    monkeypatch.setattr("sglang.srt.layers.attention.ddtree_sm120.plan.read_tree_mask", misread)
    monkeypatch.setattr("sglang.srt.layers.attention.ddtree_sm120.cpu_mla_verify.read_tree_mask", misread)
    found = step(*mla_scene(PREFIX))
    assert found["max_ulp"] < 2, "their distance from each other says nothing"
    assert min(found["reference"][name]["error"] for name in ("ours", "delegate")) > BF16


def test_long_requests_are_counted(step, monkeypatch):
    monkeypatch.setattr("ddtree_error_plugin.MAX_KEYS", 100)
    reference = step(*mla_scene(PREFIX))["reference"]
    assert (reference["rows"], reference["rows_left_out"]) == (4 * NODES * 3, NODES * 3)
    assert reference["ours"]["error"] < BF16


# -- and in the backend for GPUs ----------------------------------------------------


@pytest.mark.parametrize("graph_size", [None, 4], ids=["eager", "graph"])
def test_in_the_backend_for_gpus(graph_size):
    """Prepared step by step, with other lengths, trees and padding; what a capture counts is dropped."""
    batches = [[0, 70, 5], [33], [12, 1, 0, 64]]
    early, found = error_scene.in_interpreter("by_gpu_backend", batches, graph_size, 16)
    if graph_size is not None:
        assert early["raw"]["rows"] == 0 and "reference" not in early["shown"]
    reference = found.pop("reference")
    assert (reference["steps"], reference["rows"]) == (found["steps"], found["rows"])
    assert (found["steps"], found["rows"]) == (3, 8 * NODES * 3)
    assert reference["rows_left_out"] == reference["reference_rows_not_finite"] == 0
    assert 5e-4 < reference["ours"]["error"] < BF16
    off = error_scene.Delegate.factor - 1
    assert reference["delegate"]["error"] == pytest.approx(math.hypot(off, 1.7e-3), rel=0.1)

# SPDX-License-Identifier: Apache-2.0
"""The modes of the cutover switch, and what each of them runs on a CPU."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from scene import GQA, MLA, Scene, mask_words, random_tree
from sglang.srt.layers.attention.ddtree_sm120 import cpu_backend
from sglang.srt.layers.attention.ddtree_sm120.cpu_mla_verify import CpuMlaVerify
from sglang.srt.layers.attention.ddtree_sm120.verify_mode import switch as switch_module
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import Requested, VerifyMode, parse_modes
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.switch import (
    REPORT_EVERY_STEPS,
    UnpreparedMode,
    VerifySwitch,
    open_switch,
)
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.ulp import UlpReport, UlpTotals
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.runner_utils import capture_mode

OFF, VALIDATE, ON = VerifyMode
ALL = tuple(VerifyMode)
KERNELS = {OFF: "theirs", ON: "ours"}


def _switch(mode: VerifyMode, modes=ALL) -> VerifySwitch:
    return VerifySwitch(mode, modes, KERNELS, UlpTotals(1, 0, "cpu"))


# -- what was asked for -----------------------------------------------------------


@pytest.mark.parametrize(
    "asked,key,expected",
    [
        ((None, None), None, (ON, (ON,))),
        (("validate", None), None, (VALIDATE, (VALIDATE,))),
        (("off", None), "secret", (OFF, ALL)),
        ((None, "off,on"), None, (ON, (OFF, ON))),
        ((None, " validate , off "), None, (OFF, (OFF, VALIDATE))),
        (("off", "on,off"), "secret", (OFF, (OFF, ON))),
    ],
)
def test_modes_to_prepare(asked, key, expected):
    assert Requested.from_values(*asked, key).resolve(ON, frozenset(ALL)) == expected


def test_an_admin_key_brings_only_what_is_possible():
    assert Requested.from_values(None, None, "secret").resolve(OFF, frozenset({OFF})) == (OFF, (OFF,))


@pytest.mark.parametrize("text", ["", ",", "offf", "on;off"])
def test_modes_that_do_not_exist(text):
    with pytest.raises(ValueError, match="--ddtree-verify-modes"):
        parse_modes(text)


def test_the_first_mode_must_be_prepared():
    with pytest.raises(ValueError, match="--ddtree-verify on is not among --ddtree-verify-modes off,validate"):
        Requested.from_values("on", "validate,off", None).resolve(ON, frozenset(ALL))


# -- the switch -------------------------------------------------------------------


def test_switching():
    switch = _switch(OFF)
    assert switch.set(ON) is OFF
    assert (switch.mode, switch.running, switch.switches) == (ON, ON, 1)
    assert switch.set(ON) is ON and switch.switches == 1


def test_an_unprepared_mode_is_refused_with_the_remedy():
    switch = _switch(OFF, (OFF, VALIDATE))
    with pytest.raises(UnpreparedMode, match="restart with --ddtree-verify-modes off,validate,on"):
        switch.set(ON)
    assert switch.mode is OFF and switch.switches == 0


def test_a_mode_without_a_kernel_is_refused_with_the_reason():
    switch = VerifySwitch(OFF, (OFF,), {OFF: "torch"}, remark="it is for MLA models")
    with pytest.raises(UnpreparedMode, match=r"no kernel for 'on' .it is for MLA models"):
        switch.set(VALIDATE)


def test_a_capture_decides_for_itself(monkeypatch):
    switch = _switch(ON)
    monkeypatch.setattr(capture_mode, "_capture_attention_variant", "validate")
    assert switch.running is VALIDATE and switch.mode is ON


def test_steps_are_counted_from_the_last_entry_and_reported():
    switch, reports = _switch(VALIDATE), []
    switch.on_report = lambda: reports.append(switch.steps)
    switch.totals.values.fill_(9)
    for _ in range(2 * REPORT_EVERY_STEPS):
        switch.begin_step(eager=False)
    assert reports == [REPORT_EVERY_STEPS, 2 * REPORT_EVERY_STEPS]
    assert switch.totals.values.eq(0).all(), "what was counted before the first step is dropped"

    switch.set(ON)
    switch.begin_step(eager=False)
    assert switch.steps == 2 * REPORT_EVERY_STEPS, "kept after leaving"
    switch.totals.values.fill_(9)
    switch.set(VALIDATE)
    assert switch.steps == 0
    switch.begin_step(eager=False)
    assert switch.steps == 1 and switch.totals.values.eq(0).all()


def test_a_forward_that_is_prepared_twice_is_one_step(monkeypatch):
    switch, layer = _switch(VALIDATE), SimpleNamespace(layer_id=0, tp_q_head_num=1, v_head_dim=4)
    out, lens = torch.ones(2, 4), torch.zeros(2, dtype=torch.int32)

    def serve():
        switch.serve(layer, lens, ours=lambda: out, delegate=lambda: out)

    for steps in (1, 2):
        switch.begin_step(eager=True)
        switch.begin_step(eager=True)
        serve()
        serve()
        assert switch.steps == steps and UlpReport.of(switch.totals.values, 0).rows == 4 * steps
    monkeypatch.setattr(capture_mode, "_capture_attention_variant", "validate")
    switch.begin_step(eager=True)
    serve()
    assert switch.steps == 2, "a capture is no step"


def _runner(**more) -> SimpleNamespace:
    pool = SimpleNamespace(layer_num=4, start_layer=2)
    return SimpleNamespace(device="cpu", token_to_kv_pool=pool, is_draft_worker=False, **more)


def test_the_backends_of_a_runner_share_a_switch(monkeypatch):
    monkeypatch.setattr(switch_module, "_requested", lambda: Requested(has_admin_key=True))
    runner = _runner()
    switch = open_switch(runner, delegate="theirs", ours="ours", default=ON)
    assert runner.verify_switch is switch and switch.modes == ALL
    assert switch.totals.values.shape[0] == 4 and switch.totals.first_layer == 2
    assert open_switch(runner, delegate="theirs", ours="ours", default=ON) is switch


def test_layers_between_recurrent_ones_are_counted(monkeypatch):
    """The pool of such a model counts its attention layers alone and keeps the model's ids."""
    monkeypatch.setattr(switch_module, "_requested", lambda: Requested(mode=VALIDATE))
    pool = HybridLinearKVPool.__new__(HybridLinearKVPool)
    pool.start_layer, pool.full_attention_layer_id_mapping = 0, {3: 0, 7: 1, 11: 2}
    runner = SimpleNamespace(device="cpu", token_to_kv_pool=pool, is_draft_worker=False)
    totals = open_switch(runner, delegate="theirs", ours="ours", default=ON).totals
    for layer in pool.full_attention_layer_id_mapping:
        totals.add(layer, torch.ones(1, 1, 4), torch.full((1, 1, 4), 1 + layer / 8), torch.zeros(1, dtype=torch.int32))
    report = UlpReport.of(totals.values, totals.first_layer)
    assert report.rows == 3 and report.worst_layer == 11


def test_a_drafter_cannot_be_switched(monkeypatch):
    monkeypatch.setattr(switch_module, "_requested", lambda: Requested(mode=ON, has_admin_key=True))
    runner = SimpleNamespace(is_draft_worker=True)
    switch = open_switch(runner, delegate="theirs", ours="ours", default=ON)
    assert switch.modes == (OFF,) and not hasattr(runner, "verify_switch")


@pytest.mark.parametrize("asked", [{"mode": ON}, {"mode": VALIDATE}, {"modes": frozenset({OFF, ON})}])
def test_a_kernel_that_is_not_there_is_refused(monkeypatch, asked):
    monkeypatch.setattr(switch_module, "_requested", lambda: Requested(**asked))
    with pytest.raises(ValueError, match=r"--ddtree-verify: mode '(on|validate)' is not possible .* for MLA .* off"):
        open_switch(_runner(), delegate="torch", ours=None, default=OFF, remark="it is for MLA models")


# -- on a CPU ---------------------------------------------------------------------

TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 4e-6}, torch.bfloat16: {"rtol": 2**-7, "atol": 1e-5}}


class ModeScene(Scene):
    """A scene whose backend runs in a mode of its own."""

    def runner(self) -> SimpleNamespace:
        runner = super().runner()
        runner.page_size = self.page_size
        runner.verify_switch = self.switch
        return runner


def _scene(mode, forward_mode=ForwardMode.TARGET_VERIFY, heads=MLA, dtype=torch.float32, page_size=16, **more):
    prefix, nodes = [0, 1, 40, 15, 129], 9 if forward_mode.is_target_verify() else 1
    rng = random.Random(3)
    parents = [random_tree(rng, nodes) for _ in prefix] if nodes > 1 else None
    scene = ModeScene(heads, dtype, page_size, forward_mode, prefix, [nodes] * len(prefix), parents, more)
    scene.switch = _switch(mode)
    words = None if parents is None else mask_words(parents)
    info = SimpleNamespace(draft_token_num=nodes, custom_mask=None, mask_words=words) if nodes > 1 else None
    return scene, info


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("forward_mode", [ForwardMode.TARGET_VERIFY, ForwardMode.DECODE], ids=["verify", "decode"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("page_size", [1, 64])
def test_every_mode_is_right(mode, forward_mode, dtype, page_size):
    scene, info = _scene(mode, forward_mode, dtype=dtype, page_size=page_size)
    torch.testing.assert_close(scene.run(info), scene.expected(), **TOLERANCE[dtype])
    report = UlpReport.of(scene.switch.totals.values, 0)
    assert report.rows == (len(scene.q) * MLA.query if mode is VALIDATE else 0)
    assert report.rows_not_finite == 0
    assert report.max_ulp <= (1e-3 if dtype == torch.float32 else 1.0)


@pytest.mark.parametrize("mode,runs", [(OFF, {"torch"}), (VALIDATE, {"torch", "twin"}), (ON, {"twin"})])
def test_each_mode_runs_its_kernels(monkeypatch, mode, runs):
    seen = set()
    attend, twin = cpu_backend.attend, CpuMlaVerify.attend
    monkeypatch.setattr(cpu_backend, "attend", lambda *a: (seen.add("torch"), attend(*a)))
    monkeypatch.setattr(CpuMlaVerify, "attend", lambda *a: (seen.add("twin"), twin(*a))[1])
    scene, info = _scene(mode)
    scene.run(info)
    assert seen == runs


def test_validate_serves_the_delegate_and_sees_a_wrong_kernel(monkeypatch):
    def wrong(self, step, q, key_buffer, scale):
        out = torch.full((*q.shape[:2], 512), 0.25)
        out[2, 1, 100] = float("nan")
        return out

    monkeypatch.setattr(CpuMlaVerify, "attend", wrong)
    scene, info = _scene(VALIDATE)
    torch.testing.assert_close(scene.run(info), scene.expected(), **TOLERANCE[torch.float32])
    report = UlpReport.of(scene.switch.totals.values, 0)
    assert report.rows_not_finite == 1
    assert report.rows_beyond_2_ulp == report.rows - 1
    assert report.max_ulp > 100


@pytest.mark.parametrize("more", [{"sliding_window_size": 5}, {"logit_cap": 20.0}], ids=["window", "cap"])
def test_layers_without_a_twin_are_attended_by_torch(more):
    scene, info = _scene(ON, **more)
    torch.testing.assert_close(scene.run(info), scene.expected(), **TOLERANCE[torch.float32])


def test_gqa_has_torch_alone():
    scene = Scene(GQA, torch.float32, 16, ForwardMode.DECODE, [4, 9], [1, 1])
    runner = scene.runner()
    cpu_backend.DDTreeSM120CpuAttnBackend(runner)
    assert runner.verify_switch.modes == (OFF,)
    assert "MLA" in runner.verify_switch.remark


def test_mla_is_on_by_default():
    runner = Scene(MLA, torch.float32, 16, ForwardMode.DECODE, [4, 9], [1, 1]).runner()
    cpu_backend.DDTreeSM120CpuAttnBackend(runner)
    assert runner.verify_switch.mode is ON

# SPDX-License-Identifier: Apache-2.0
"""Every mode has its own captured graphs: what the runner captures, which set serves a batch, and what a set costs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import SimpleNamespace

import pytest
from sglang.srt.layers.attention.ddtree_sm120.verify_mode import graph_variants
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.graph_variants import (
    GraphMemory,
    VerifyGraphVariants,
    graph_variants_of,
)
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import VerifyMode
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.switch import VerifySwitch
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.ulp import UlpTotals
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

OFF, VALIDATE, ON = VerifyMode


def _switch(*modes: VerifyMode) -> VerifySwitch:
    return VerifySwitch(modes[0], modes, {OFF: "theirs", ON: "ours"}, UlpTotals(1, 0, "cpu"))


def _runner(switch=None, draft=False) -> SimpleNamespace:
    runner = SimpleNamespace(is_draft_worker=draft)
    if switch is not None:
        runner.verify_switch = switch
    return runner


def test_the_mode_in_force_chooses_the_set():
    switch = _switch(OFF, VALIDATE, ON)
    variants = graph_variants_of(_runner(switch))
    assert set(variants.capture_labels) == {"off", "validate", "on"}
    assert variants.select(None) == "off"
    switch.set(ON)
    assert variants.select(None) == "on"


def test_only_prepared_modes_are_captured():
    assert VerifyGraphVariants(_switch(ON)).capture_labels == ("on",)


def test_other_runners_have_no_such_variants():
    assert graph_variants_of(_runner()) is None
    assert graph_variants_of(_runner(_switch(ON), draft=True)) is None


def test_the_runner_captures_every_mode():
    """The runner asks for our variants first and keys its graphs by them."""
    source = ast.parse(textwrap.dedent(inspect.getsource(DecodeCudaGraphRunner.__init__)))
    (value,) = (
        ast.unparse(node.value)
        for node in ast.walk(source)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "self.attention_graph_variants"
    )
    assert value.startswith("graph_variants_of(model_runner) or ")

    switch = _switch(OFF, ON)
    runner = SimpleNamespace(attention_graph_variants=VerifyGraphVariants(switch))
    resolve = DecodeCudaGraphRunner._resolve_attention_variant
    assert resolve(runner, None, 1) == "off"
    switch.set(ON)
    assert resolve(runner, None, 1) == "on"


def test_each_capture_is_measured():
    calls = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(DecodeCudaGraphRunner._capture_one_stream))))
        if isinstance(node, (ast.Assign, ast.Expr))
    ]
    begin = calls.index("graph_memory = GraphMemory(self.model_runner, attention_variant)")
    end = calls.index("graph_memory.close()")
    assert end == begin + 2 and calls[begin + 1].startswith("self.capture_one_shape(")


def test_memory_is_added_up_by_mode(monkeypatch):
    switch, free = _switch(OFF, VALIDATE, ON), iter([1000, 900, 900, 860, 860, 800])
    monkeypatch.setattr(graph_variants.torch.cuda, "mem_get_info", lambda: (next(free), 0))
    for mode in ("validate", "on", "validate"):
        GraphMemory(_runner(switch), mode).close()
    assert switch.graph_bytes == {VALIDATE: 160, ON: 40}


@pytest.mark.parametrize("runner,variant", [(_runner(), None), (_runner(), "dense"), (_runner(_switch(ON)), None)])
def test_other_captures_are_not_measured(runner, variant):
    GraphMemory(runner, variant).close()

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


POOL, ELSEWHERE = (0, 7), (0, 0)


class _Allocator:
    """Segments of torch's allocator: ``reserve`` adds to the graphs' pool, ``elsewhere`` sets what others have."""

    def __init__(self, monkeypatch):
        self.elsewhere, self._graphs = 500, []
        monkeypatch.setattr(graph_variants, "get_global_graph_memory_pool", lambda: POOL)
        monkeypatch.setattr(graph_variants.torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(graph_variants.torch.cuda, "memory_snapshot", self._snapshot)

    def reserve(self, size: int) -> None:
        self._graphs.append(size)

    def _snapshot(self) -> list[dict]:
        segments = [(0, ELSEWHERE, self.elsewhere), (1, POOL, 10**9), *((0, POOL, size) for size in self._graphs)]
        return [{"device": device, "segment_pool_id": pool, "total_size": size} for device, pool, size in segments]


def test_memory_is_added_up_by_mode(monkeypatch):
    switch, allocator = _switch(OFF, VALIDATE, ON), _Allocator(monkeypatch)
    for mode, size in (("validate", 100), ("on", 40), ("validate", 60)):
        memory = GraphMemory(_runner(switch), mode)
        allocator.reserve(size)
        memory.close()
    assert switch.graph_bytes == {VALIDATE: 160, ON: 40}


def test_memory_of_others_is_not_counted(monkeypatch):
    """Other processes take and free memory of the card meanwhile, and torch empties its cache before a capture."""
    free = iter([10_000, 400, 400, 9_000])
    monkeypatch.setattr(graph_variants.torch.cuda, "mem_get_info", lambda: (next(free), 20_000))
    switch, allocator = _switch(OFF, ON), _Allocator(monkeypatch)
    for mode, size in (("on", 100), ("off", 0)):
        memory = GraphMemory(_runner(switch), mode)
        allocator.elsewhere = 0
        allocator.reserve(size)
        memory.close()
    assert switch.graph_bytes == {ON: 100, OFF: 0}


@pytest.mark.parametrize("runner,variant", [(_runner(), None), (_runner(), "dense"), (_runner(_switch(ON)), None)])
def test_other_captures_are_not_measured(runner, variant):
    GraphMemory(runner, variant).close()

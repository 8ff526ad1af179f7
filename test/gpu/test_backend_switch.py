# SPDX-License-Identifier: Apache-2.0
"""The three modes of the cutover switch on a GPU, eager and as captured graphs of one layer."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from backend_scene import LATENT, ROPE, Layer, Requests, random_tree, relative_error
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import VerifyMode
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.switch import VerifySwitch
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.ulp import (
    COLUMNS,
    MAX,
    UlpReport,
    UlpTotals,
    add_rows_torch,
)
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.runner_utils import capture_mode
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

OFF, VALIDATE, ON = VerifyMode
# bfloat16 in and out; the delegate rounds its probabilities too.
TOLERANCE = 6e-3
PREFIX = [0, 1, 63, 64, 700, 1500]
# What the delegate reads of a ForwardBatch beyond what ours does.
MORE = {"mha_one_shot": False} | dict.fromkeys(("kv_loc_plan", "encoder_lens", "extend_seq_lens_cpu", "seq_lens_sum"))


class Switched:
    """A layer whose backend can be switched; windows of ``num_nodes``, decode with 1."""

    def __init__(self, heads: int, page_size: int, num_nodes: int, max_batch: int = 6):
        self._ranks = get_parallel().override(attn_dcp_size=1, attn_dcp_rank=0)
        self._ranks.__enter__()
        self.layer = Layer(heads, page_size, max_batch, max_context=2048)
        self.num_nodes = num_nodes
        self.mode = ForwardMode.TARGET_VERIFY if num_nodes > 1 else ForwardMode.DECODE
        runner = self.layer.runner
        if num_nodes > 1:
            runner.spec_algorithm = SpeculativeAlgorithm.DFLASH
            get_context().override(source="test", speculative_num_draft_tokens=num_nodes)
        self.switch = VerifySwitch(ON, tuple(VerifyMode), {OFF: "triton", ON: "ours"}, UlpTotals(1, 0, "cuda"))
        runner.verify_switch = self.switch
        self.backend = self.layer.backend()

    def batch(self, requests: Requests, trees) -> SimpleNamespace:
        info = requests.spec_info(trees) if self.num_nodes > 1 else None
        return SimpleNamespace(**vars(requests.batch(self.mode, info)), **MORE)

    def eager(self, requests: Requests, trees) -> torch.Tensor:
        batch = self.batch(requests, trees)
        self.backend.init_forward_metadata(batch)
        return requests.run(self.backend, batch)

    def report(self) -> UlpReport:
        return UlpReport.of(self.switch.totals.values.cpu(), 0)


def _trees(count: int, num_nodes: int, seed: int) -> list[list[int]] | None:
    rng = random.Random(seed)
    return [random_tree(rng, num_nodes) for _ in range(count)] if num_nodes > 1 else None


@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("heads,num_nodes", [(8, 8), (16, 33), (8, 1)])
def test_eager(heads, num_nodes, page_size):
    scene = Switched(heads, page_size, num_nodes)
    requests, trees = Requests(scene.layer, PREFIX, num_nodes, seed=1), _trees(6, num_nodes, 2)
    outputs = {}
    for mode in VerifyMode:
        scene.switch.set(mode)
        outputs[mode] = scene.eager(requests, trees).clone()
        assert relative_error(outputs[mode], requests.expected(trees)) <= TOLERANCE, mode
    assert torch.equal(outputs[VALIDATE], outputs[OFF])
    assert not torch.equal(outputs[ON], outputs[OFF]), "two kernels that round differently"

    expected = torch.zeros(COLUMNS, dtype=torch.int64, device="cuda")
    add_rows_torch(expected, outputs[OFF], outputs[ON], torch.tensor(PREFIX, device="cuda"))
    counted = scene.switch.totals.values[0]
    assert counted[:3].tolist() == expected[:3].tolist() == [6 * num_nodes * heads, expected[1], 0]
    torch.testing.assert_close(counted[3:].double(), expected[3:].double(), rtol=1e-4, atol=1e3)
    assert 0 < scene.report().max_ulp < 16


class Graphs:
    """One captured graph a mode over the same static inputs, as SGLang's decode runner makes them."""

    def __init__(self, scene: Switched, size: int):
        self.scene, self.size = scene, size
        layer, tokens = scene.layer, size * scene.num_nodes
        self.q = torch.zeros(tokens, layer.heads, LATENT + ROPE, dtype=torch.bfloat16, device="cuda")
        self.k = torch.zeros(tokens, 1, LATENT + ROPE, dtype=torch.bfloat16, device="cuda")
        info = SimpleNamespace(draft_token_num=scene.num_nodes, mask_words=None, custom_mask=None)
        self.fields = SimpleNamespace(
            forward_mode=scene.mode,
            batch_size=size,
            req_pool_indices=torch.zeros(size, dtype=torch.int64, device="cuda"),
            seq_lens=torch.ones(size, dtype=torch.int64, device="cuda"),
            spec_info=info if scene.num_nodes > 1 else None,
            out_cache_loc=torch.zeros(tokens, dtype=torch.int64, device="cuda"),
            out_cache_loc_is_physical=True,
            **MORE,
        )
        layer.table.zero_()
        layer.pool.kv_buffer[0].zero_()
        scene.backend.init_cuda_graph_state(size, tokens)
        self.graphs = {mode: self._capture(mode) for mode in VerifyMode}
        # The run before each capture has been counted.
        scene.switch.totals.reset()

    def _capture(self, mode: VerifyMode):
        capture_mode._set_capture_attention_variant(mode.value)
        try:
            backend, graph = self.scene.backend, torch.cuda.CUDAGraph()
            backend.init_forward_metadata_out_graph(self.fields, in_capture=True)
            self._forward()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                backend.init_forward_metadata_in_graph(self.fields)
                out = self._forward()
        finally:
            capture_mode._set_capture_attention_variant(None)
        return graph, out

    def _forward(self) -> torch.Tensor:
        return Requests.run(SimpleNamespace(layer=self.scene.layer), self.scene.backend, self.fields, self.q, self.k)

    def replay(self, requests: Requests, trees) -> torch.Tensor:
        """By the graph of the mode in force, with the batch padded to the captured size."""
        real, fields, scene = len(requests.prefix), self.fields, self.scene
        tokens = real * scene.num_nodes
        batch = scene.batch(requests, trees)
        for static, value, fill in (
            (fields.req_pool_indices, batch.req_pool_indices, 0),
            (fields.seq_lens, batch.seq_lens, 1),
            (fields.out_cache_loc, batch.out_cache_loc, 0),
        ):
            static.fill_(fill)
            static[: value.numel()] = value
        self.q.zero_()
        self.k.zero_()
        self.q[:tokens], self.k[:tokens] = requests.q, requests.k
        scene.layer.pool.kv_buffer[0][: scene.layer.page_size] = 0
        scene.layer.table[0] = 0
        view = SimpleNamespace(**vars(fields) | {"spec_info": batch.spec_info, "num_padding": self.size - real})
        scene.backend.init_forward_metadata_out_graph(view)
        graph, out = self.graphs[scene.switch.mode]
        graph.replay()
        assert out.isfinite().all(), "padded requests too"
        return out[:tokens]


@pytest.mark.parametrize("num_nodes", [8, 33, 1])
def test_captured_graphs_follow_the_switch(num_nodes):
    scene = Switched(8, 16, num_nodes)
    graphs = Graphs(scene, 6)
    rng = random.Random(num_nodes)
    compared = 0
    for step, mode in enumerate([ON, VALIDATE, OFF, ON, VALIDATE, VALIDATE, OFF]):
        if mode is not scene.switch.mode:
            scene.switch.set(mode)
            compared = 0 if mode is VALIDATE else compared
        prefix = [rng.choice(PREFIX) for _ in range(rng.randint(1, 6))]
        # Row 0 of the table is that of padded requests.
        requests = Requests(scene.layer, prefix, num_nodes, seed=100 + step, first_row=1)
        trees = _trees(len(prefix), num_nodes, step)
        expected = requests.expected(trees)
        out = graphs.replay(requests, trees)
        assert relative_error(out, expected) <= TOLERANCE, (step, mode)
        compared += len(prefix) * num_nodes * 8 if mode is VALIDATE else 0
        assert scene.report().rows == compared, (step, mode)
    report = scene.report()
    assert report.rows_not_finite == 0 and 0 < report.max_ulp < 16


def test_validate_sees_a_broken_kernel_under_a_graph():
    scene = Switched(8, 16, 8)
    attend = scene.backend._layers.attend

    def broken(*args):
        out = attend(*args)
        out[3, 700].fill_(float("nan"))  # an assignment would copy from the host, which a capture forbids
        out[5, 0] += 4.0
        return out

    scene.backend._layers.attend = broken
    graphs = Graphs(scene, 2)
    scene.switch.set(VALIDATE)
    requests, trees = Requests(scene.layer, [64, 700], 8, seed=3, first_row=1), _trees(2, 8, 3)
    expected = requests.expected(trees)
    assert relative_error(graphs.replay(requests, trees), expected) <= TOLERANCE, "the delegate is served"
    report = scene.report()
    assert (report.rows, report.rows_not_finite) == (2 * 8 * 8, 1)
    assert report.rows_beyond_2_ulp >= 1 and report.max_ulp > 16


def test_totals_are_the_same_for_any_order():
    g = torch.Generator("cuda").manual_seed(0)
    served = torch.randn(256, 16, LATENT, generator=g, device="cuda").bfloat16()
    ours = (served.float() + 0.01 * torch.randn(served.shape, generator=g, device="cuda")).bfloat16()
    prefix_lens = torch.zeros(8, dtype=torch.int32, device="cuda")
    totals = UlpTotals(1, 0, "cuda")
    seen = set()
    for _ in range(5):
        totals.reset()
        totals.add(0, served, ours, prefix_lens)
        seen.add(tuple(totals.values[0].tolist()))
    assert len(seen) == 1
    expected = torch.zeros(COLUMNS, dtype=torch.int64, device="cuda")
    add_rows_torch(expected, served, ours, prefix_lens)
    (counted,) = seen
    assert list(counted[:3]) == expected[:3].tolist()
    assert counted[MAX] == pytest.approx(int(expected[MAX]), rel=1e-5)

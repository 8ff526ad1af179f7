# SPDX-License-Identifier: Apache-2.0
"""``ddtree_sm120`` on a GPU, eager and under graphs, against dense float64 attention and SGLang's Triton backend."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from backend_scene import (
    LATENT,
    ROPE,
    Layer,
    Requests,
    full_mask,
    random_tree,
    relative_error,
    star,
)
from sglang.srt.layers.attention.ddtree_sm120.cuda_backend import DDTreeSM120AttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.test.kits.attention_unittest.attention_methods import mla_attention as kit
from sglang.test.kits.attention_unittest.runner_modes.speculative_target_verify_runner import (
    _prepare_target_verify_batch,
)

# The kernel's own limit on bfloat16 inputs; its tests hold it to the same.
TOLERANCE = 4e-3
VERIFY, DECODE = ForwardMode.TARGET_VERIFY, ForwardMode.DECODE
PREFIX = [0, 1, 63, 64, 700, 1500]


def _trees(count: int, num_nodes: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [star(num_nodes) if i % 4 == 3 else random_tree(rng, num_nodes) for i in range(count)]


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("heads,num_nodes", [(8, 8), (20, 33), (128, 17), (5, 257), (16, 1)])
@pytest.mark.parametrize("kind", ["words", "full", "none"])
def test_eager_verify(heads, num_nodes, page_size, kind):
    layer = Layer(heads, page_size, max_batch=6, max_context=2048)
    requests = Requests(layer, PREFIX, num_nodes, seed=num_nodes)
    trees = None if kind == "none" else _trees(6, num_nodes, seed=heads)
    backend = layer.backend()
    batch = requests.batch(VERIFY, requests.spec_info(trees, kind))
    backend.init_forward_metadata(batch)
    out = requests.run(backend, batch)
    assert relative_error(out, requests.expected(trees)) <= TOLERANCE


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("heads", [8, 20, 128])
def test_eager_decode(heads, page_size):
    layer = Layer(heads, page_size, max_batch=6, max_context=2048)
    requests = Requests(layer, PREFIX, 1)
    backend = layer.backend()
    batch = requests.batch(DECODE)
    backend.init_forward_metadata(batch)
    assert relative_error(requests.run(backend, batch), requests.expected()) <= TOLERANCE


class Graph:
    """One captured step of a backend, with the input buffers that SGLang's graph runner would own."""

    def __init__(self, layer: Layer, backend: DDTreeSM120AttnBackend, mode: ForwardMode, batch: int, num_nodes: int):
        tokens = batch * num_nodes
        self.layer, self.backend, self.size, self.num_nodes = layer, backend, batch, num_nodes
        self.q = torch.zeros(tokens, layer.heads, LATENT + ROPE, dtype=torch.bfloat16, device="cuda")
        self.k = torch.zeros(tokens, 1, LATENT + ROPE, dtype=torch.bfloat16, device="cuda")
        self.fields = SimpleNamespace(
            forward_mode=mode,
            batch_size=batch,
            req_pool_indices=torch.zeros(batch, dtype=torch.int64, device="cuda"),
            seq_lens=torch.ones(batch, dtype=torch.int64, device="cuda"),
            spec_info=SimpleNamespace(draft_token_num=num_nodes, mask_words=None, custom_mask=None),
            out_cache_loc=torch.zeros(tokens, dtype=torch.int64, device="cuda"),
            out_cache_loc_is_physical=True,
        )
        # What the captured kernels read before there is a request: the runner's dummy row and slot.
        layer.table[0, : 1 + num_nodes] = 0
        layer.pool.kv_buffer[0][: layer.page_size] = 0
        backend.init_forward_metadata_out_graph(self.fields, in_capture=True)
        self.graph = torch.cuda.CUDAGraph()
        self._forward()
        backend.on_after_cuda_graph_warmup()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            backend.init_forward_metadata_in_graph(self.fields)
            self.out = self._forward()

    def _forward(self) -> torch.Tensor:
        return Requests.run(SimpleNamespace(layer=self.layer), self.backend, self.fields, self.q, self.k)

    def replay(self, requests: Requests, spec_info: object | None) -> torch.Tensor:
        """Fill the buffers as the runner does for a batch smaller than the captured one."""
        real, fields = len(requests.prefix), self.fields
        tokens = real * self.num_nodes
        batch = requests.batch(fields.forward_mode, spec_info)
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
        view = SimpleNamespace(**vars(fields) | {"spec_info": spec_info, "num_padding": self.size - real})
        self.backend.init_forward_metadata_out_graph(view)
        # Nothing of the scheduler's may be read from here on.
        self.layer.table.fill_(2**31 - 1)
        fields.seq_lens.fill_(2**30)
        fields.req_pool_indices.fill_(2**30)
        self.graph.replay()
        torch.cuda.synchronize()
        assert (self.out[tokens:] == 0).all()
        return self.out[:tokens]


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("heads,num_nodes", [(8, 8), (20, 33), (128, 5), (8, 257)])
def test_graph_verify(heads, num_nodes, page_size):
    """One graph a batch size serves every smaller batch, every tree, and the chain."""
    layer = Layer(heads, page_size, max_batch=4, max_context=2048)
    backend = layer.backend()
    backend.init_cuda_graph_state(4, 4 * num_nodes)
    graphs = {size: Graph(layer, backend, VERIFY, size, num_nodes) for size in (4, 2)}
    rng = random.Random(page_size)
    for step in range(12):
        real = 1 + step % 4
        prefix = [rng.choice([0, 1, rng.randrange(1700)]) for _ in range(real)]
        requests = Requests(layer, prefix, num_nodes, seed=step)
        kind = ("words", "full", "none")[step % 3]
        trees = None if kind == "none" else _trees(real, num_nodes, seed=step)
        expected = requests.expected(trees)
        out = graphs[2 if real <= 2 else 4].replay(requests, requests.spec_info(trees, kind))
        assert relative_error(out, expected) <= TOLERANCE, (step, kind)


@pytest.mark.parametrize("page_size", [1, 64])
def test_graph_decode(page_size):
    layer = Layer(16, page_size, max_batch=4, max_context=2048)
    backend = layer.backend()
    backend.init_cuda_graph_state(4, 4)
    graph = Graph(layer, backend, DECODE, 4, 1)
    for step, prefix in enumerate([[5, 0, 1700, 64], [1], [63, 900], [2, 3, 4]]):
        requests = Requests(layer, prefix, 1, seed=step)
        expected = requests.expected()
        assert relative_error(graph.replay(requests, None), expected) <= TOLERANCE


def test_graph_equals_eager():
    layer = Layer(8, 16, max_batch=4, max_context=2048)
    backend = layer.backend()
    backend.init_cuda_graph_state(4, 4 * 16)
    graph = Graph(layer, backend, VERIFY, 4, 16)
    requests = Requests(layer, [3, 500, 1200], 16)
    spec_info = requests.spec_info(_trees(3, 16, 1))
    batch = requests.batch(VERIFY, spec_info)
    eager = layer.backend()
    eager.init_forward_metadata(batch)
    expected = requests.run(eager, batch)
    assert torch.equal(graph.replay(requests, spec_info), expected)


def test_decode_equals_verify_of_the_root():
    """Greedy decoding and a verify share their numerics."""
    layer = Layer(8, 16, max_batch=4, max_context=2048)
    requests = Requests(layer, [3, 500, 1200], 1)
    backend = layer.backend()
    outputs = []
    for batch in (requests.batch(DECODE), requests.batch(VERIFY, requests.spec_info(None))):
        backend.init_forward_metadata(batch)
        outputs.append(requests.run(backend, batch))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("with_trees", [False, True])
def test_beside_triton(page_size, with_trees):
    """The same verify by SGLang's Triton backend: the same result, and ours no further from the truth."""
    num_nodes, heads, prefix = 16, 8, (0, 5, 300, 1000)
    layer = Layer(heads, page_size, max_batch=4, max_context=2048)
    requests = Requests(layer, list(prefix), num_nodes)
    layer.pool.kv_buffer[0].nan_to_num_(0.0)  # Triton reads rows of others and masks the product
    trees = _trees(4, num_nodes, 5) if with_trees else None
    expected = requests.expected(trees)
    ours = layer.backend()
    batch = requests.batch(VERIFY, requests.spec_info(trees))
    ours.init_forward_metadata(batch)
    ours_error = relative_error(requests.run(ours, batch), expected)

    case = kit.MLAAttentionCase("triton", "triton", VERIFY, heads, page_size, prefix, (num_nodes,) * 4)
    slots = [own.tolist() for own in requests.slots]
    batch = kit._make_forward_batch(
        case,
        layer.runner,
        max_context_len=2048,
        device="cuda",
        loc_fn=lambda request, position: slots[request][position],
    )
    _prepare_target_verify_batch(batch, case, "cuda")
    batch.spec_info = DFlashVerifyInput(
        draft_token=batch.input_ids,
        positions=batch.positions,
        draft_token_num=num_nodes,
        custom_mask=None if trees is None else full_mask(trees, list(prefix)),
    )
    triton = layer.backend("triton")
    triton.init_forward_metadata(batch)
    out = triton.forward(
        requests.q.flatten(1), requests.k, requests.k[..., :LATENT].contiguous(), layer.attention, batch
    )
    triton_error = relative_error(out.view(-1, heads, LATENT), expected)
    assert triton_error <= 2 * TOLERANCE
    assert ours_error <= max(TOLERANCE, triton_error)


@pytest.mark.parametrize("prefix_lens,extend_lens", [((0, 0), (70, 3)), ((40, 0, 129), (5, 20, 64))])
def test_prefill_is_the_delegates(prefix_lens, extend_lens):
    layer = Layer(16, 1, max_batch=4, max_context=512)
    case = kit.MLAAttentionCase(
        "prefill", "ddtree_sm120", ForwardMode.EXTEND, 16, 1, tuple(prefix_lens), tuple(extend_lens)
    )
    fixture = kit.build_mla_attention_fixture(
        None, case, kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, max_context_len=512, dtype=torch.bfloat16
    )
    assert fixture.backend.prefill_backend_name in ("flashinfer", "triton")
    actual, expected = kit.run_mla_fixture_eager(fixture), kit.expected_mla_fixture_output(fixture)
    torch.testing.assert_close(actual, expected, atol=kit.MLA_ATOL, rtol=kit.MLA_RTOL)
    del layer


def test_delegates_graph_buffers_are_never_made(monkeypatch):
    layer = Layer(8, 1, max_batch=4, max_context=512)
    backend = layer.backend()
    monkeypatch.setattr(
        type(backend.prefill_backend), "init_cuda_graph_state", lambda *a, **k: pytest.fail("decode buffers made")
    )
    backend.init_cuda_graph_state(4, 32)

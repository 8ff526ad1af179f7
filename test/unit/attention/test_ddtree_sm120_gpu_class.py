# SPDX-License-Identifier: Apache-2.0
"""The GPU backend's own logic, on CPU tensors. ``test/gpu/test_backend_mla.py`` runs the kernels, on a GPU."""

from __future__ import annotations

import logging
import random
from types import SimpleNamespace

import pytest
import torch
from gpu_stub import gpu_backend
from scene import GQA, MHA, MLA, Heads, Scene, byte_mask, mask_words, random_tree
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, SharedReadEnds
from sglang.srt.layers.attention.ddtree_sm120 import cuda_backend, mla_layers
from sglang.srt.layers.attention.ddtree_sm120.gqa_layers import GqaLayers
from sglang.srt.layers.attention.ddtree_sm120.mask_source import mask_source
from sglang.srt.layers.attention.ddtree_sm120.step_metadata import MaskLayout
from sglang.srt.layers.attention.ddtree_sm120.verify_mode import switch as switch_module
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import Requested, VerifyMode
from sglang.srt.layers.attention.verify_mask import VerifyMask
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_utils import TreeMaskMode
from sglang.srt.speculative.spec_info import SpecInputType, SpeculativeAlgorithm

VERIFY, DECODE, EXTEND = ForwardMode.TARGET_VERIFY, ForwardMode.DECODE, ForwardMode.EXTEND


def _arguments(mode: ForwardMode, prefix: list[int], num_nodes: int, page_size: int, parents=None) -> dict:
    return {
        "heads": MLA,
        "dtype": torch.bfloat16,
        "page_size": page_size,
        "mode": mode,
        "prefix": prefix,
        "new": [num_nodes] * len(prefix),
        "parents": parents,
    }


def _assert_close(out: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((out - expected).norm() / expected.norm()) <= 4e-3


@pytest.mark.parametrize("graph_size", [None, 4])
@pytest.mark.parametrize("page_size,kind", [(1, "words"), (16, "full"), (1, "qlen"), (16, "none")])
def test_verify(interpreter, graph_size, page_size, kind):
    """Trees of every layout and a chain, eager and through the buffers of a larger graph."""
    rng, prefix = random.Random(page_size), [0, 70, 5]
    trees = None if kind == "none" else [random_tree(rng, 9) for _ in prefix]
    spec_info = SimpleNamespace(draft_token_num=9, custom_mask=None, spec_input_type=SpecInputType.NGRAM_VERIFY)
    if kind == "words":
        spec_info.mask_words = mask_words(trees)
    elif kind != "none":
        spec_info.custom_mask = byte_mask(trees, prefix if kind == "full" else None)
        spec_info.tree_mask_mode = TreeMaskMode.FULL_MASK if kind == "full" else TreeMaskMode.QLEN_ONLY
    arguments = _arguments(VERIFY, prefix, 9, page_size, trees)
    _assert_close(*interpreter("backend_forward", arguments, spec_info, graph_size))


@pytest.mark.parametrize("graph_size", [None, 4])
@pytest.mark.parametrize("page_size", [1, 16])
def test_decode(interpreter, graph_size, page_size):
    _assert_close(*interpreter("backend_forward", _arguments(DECODE, [0, 70, 15], 1, page_size), None, graph_size))


BLOCK = {"attn_type": AttentionType.ENCODER_ONLY}


@pytest.mark.parametrize("graph_size", [None, 4])
@pytest.mark.parametrize(
    "heads,page_size,kind,options",
    [
        (MHA, 1, "words", {}),
        (Heads(query=6, kv=2, value_dim=128), 16, "full", {"sliding_window_size": 9, "logit_cap": 30.0}),
        (MHA, 16, "none", {"sliding_window_size": 3}),
        (MHA, 1, "none", BLOCK),
        (MHA, 16, "none", BLOCK | {"sliding_window_size": 4}),
    ],
)
def test_verify_of_gqa(interpreter, graph_size, heads, page_size, kind, options):
    """Trees, chains and a drafter's block; windows by depth, capped logits."""
    rng, prefix = random.Random(page_size), [0, 70, 5]
    trees = None if kind == "none" else [random_tree(rng, 9) for _ in prefix]
    spec_info = SimpleNamespace(draft_token_num=9, custom_mask=None, spec_input_type=SpecInputType.NGRAM_VERIFY)
    if kind == "words":
        spec_info.mask_words = mask_words(trees)
    elif kind == "full":
        spec_info.custom_mask, spec_info.tree_mask_mode = byte_mask(trees, prefix), TreeMaskMode.FULL_MASK
    arguments = _arguments(VERIFY, prefix, 9, page_size, trees) | {"heads": heads, "layer_options": options}
    _assert_close(*interpreter("backend_forward", arguments, spec_info, graph_size))


@pytest.mark.parametrize("graph_size", [None, 4])
def test_decode_of_gqa(interpreter, graph_size):
    arguments = _arguments(DECODE, [0, 70, 15], 1, 16) | {"heads": MHA}
    _assert_close(*interpreter("backend_forward", arguments, None, graph_size))


EAGLE_MASK = VerifyMask(buffer=torch.zeros(1, dtype=torch.bool), mode=TreeMaskMode.QLEN_ONLY, max_bs=1)


@pytest.mark.parametrize(
    "kind,offered,layout",
    [
        (SpecInputType.EAGLE_VERIFY, EAGLE_MASK, MaskLayout.QLEN_ONLY),
        (SpecInputType.EAGLE_VERIFY, None, MaskLayout.FULL_MASK),
        (SpecInputType.NGRAM_VERIFY, EAGLE_MASK, MaskLayout.FULL_MASK),
    ],
)
def test_layout_that_a_builder_chooses(monkeypatch, kind, offered, layout):
    """EAGLE asks the backend, NGRAM does not, and on a GPU the whole mask is SGLang's default."""
    monkeypatch.setattr("sglang.srt.speculative.eagle_utils._is_cpu", False)
    spec_info = SimpleNamespace(draft_token_num=2, custom_mask=torch.ones(4, dtype=torch.bool), spec_input_type=kind)
    assert mask_source(spec_info, offered)[0] == layout


def test_masks_that_are_not_read():
    packed = SimpleNamespace(
        draft_token_num=2, custom_mask=torch.ones(2), tree_mask_mode=TreeMaskMode.QLEN_ONLY_BITPACKING
    )
    with pytest.raises(NotImplementedError, match="BITPACKING"):
        mask_source(packed, None)
    with pytest.raises(NotImplementedError, match="SGLANG_RAGGED_VERIFY_MODE"):
        mask_source(SimpleNamespace(ragged_verify_layout=object()), None)
    for words in (torch.zeros(1, 2, 2, dtype=torch.int32), torch.zeros(1, 2, 1)):
        with pytest.raises(ValueError, match="mask_words"):
            mask_source(SimpleNamespace(draft_token_num=2, mask_words=words), None)


def _scene(page_size: int = 1, heads=MLA) -> Scene:
    return Scene(heads, torch.bfloat16, page_size, EXTEND, [3, 0], [4, 2])


@pytest.mark.parametrize("algorithm", list(SpeculativeAlgorithm))
def test_eagle_builds_small_masks(algorithm):
    """N x N bytes a request, whatever the context, for the algorithms whose builder asks for a buffer."""
    step = _scene()
    mask = gpu_backend(step, spec_algorithm=algorithm).verify_mask
    if not (algorithm.is_eagle() or algorithm.is_standalone()):
        assert mask is None
        return
    rows = step.req_to_token_pool.req_to_token.shape[0]
    assert (mask.buffer.numel(), mask.mode, mask.max_bs) == (rows * 4 * 4, TreeMaskMode.QLEN_ONLY, rows)


@pytest.mark.parametrize("delegate,joined", [("flashinfer", False), ("triton", True)])
def test_prefill_goes_to_the_delegate(delegate, joined):
    """In the form that it takes: latent and rotary parts apart, or as one."""
    step = _scene()
    backend, batch = gpu_backend(step, delegate), step.batch()
    backend.init_forward_metadata(batch)
    assert backend.prefill_backend.calls == ["metadata"]
    q, k = step.q, torch.randn(6, 1, 576, dtype=torch.bfloat16)
    parts = {"q_rope": q[..., 512:], "k_rope": k[..., 512:]}
    got = backend.forward(q[..., :512], k[..., :512], k[..., :512], step.layer(), batch, **parts)
    if joined:
        assert torch.equal(got["q"], q)
        assert torch.equal(got["k"], k)
        assert "q_rope" not in got
    else:
        assert torch.equal(got["q"], q[..., :512])
        assert got["q_rope"] is parts["q_rope"]
        assert got["k_rope"] is parts["k_rope"]
    assert torch.equal(got["v"], k[..., :512])


def test_reads_of_shared_tables_end_before_a_replay():
    backend = gpu_backend(_scene())
    assert [backend.shared_read_ends(mode) for mode in (VERIFY, DECODE)] == [SharedReadEnds.PRE_REPLAY] * 2
    assert backend.shared_read_ends(EXTEND) == SharedReadEnds.UNKNOWN
    assert backend.needs_cpu_seq_lens is False


def test_what_it_says_about_itself():
    assert gpu_backend(_scene(), "triton").describe()["prefill"] == "triton"


@pytest.mark.parametrize("mode,served", [("on", "mla_tree_verify (CUDA)"), ("off", "triton"), ("validate", "triton")])
def test_the_log_says_which_kernel_serves(monkeypatch, caplog, mode, served):
    """The delegate is given by name only; building it needs a GPU."""
    named = type("Named", (), {"name": "triton", "__init__": lambda self, runner: None})
    monkeypatch.setattr(cuda_backend, "TritonDelegate", named)
    monkeypatch.setattr(switch_module, "_requested", lambda: Requested(mode=VerifyMode(mode)))
    with caplog.at_level(logging.INFO, cuda_backend.logger.name):
        backend = gpu_backend(_scene())
    assert backend.describe()["decode_and_verify"] == served
    (line,) = (record.getMessage() for record in caplog.records if "tokens a request" in record.getMessage())
    assert f"decode and verify run (up to 4 tokens a request) on {served};" in line


def test_the_log_of_a_draft(caplog):
    with caplog.at_level(logging.INFO, cuda_backend.logger.name):
        gpu_backend(_scene(heads=MHA), is_draft_worker=True, spec_algorithm=SpeculativeAlgorithm.DFLASH)
    assert "the draft's block runs (up to 4 tokens a request) on gqa_tree_verify (CUDA);" in caplog.text


def test_no_delegate_beside_another_prefill_backend():
    backend = gpu_backend(_scene(), prefill_attention_backend_str="triton")
    assert backend.prefill_backend is None
    assert "prefill" not in backend.describe()
    assert backend.shared_read_ends(VERIFY) == SharedReadEnds.PRE_REPLAY


def test_a_drafts_backend_says_what_graph_runners_ask():
    backend = gpu_backend(_scene(heads=MHA), is_draft_worker=True, spec_algorithm=SpeculativeAlgorithm.DFLASH)
    assert backend.dllm_attention is None
    if hasattr(AttentionBackend, "prefill_cuda_graph_default_max_seq_len"):  # 0.5.22 never asks
        assert backend.prefill_cuda_graph_default_max_seq_len is None
    assert not backend.supports_full_cuda_graph_chunked_prefix
    assert not backend.supports_prefill_cuda_graph_max_context_size


def test_the_kernel_is_loaded_before_the_first_forward(monkeypatch):
    def missing(*args, **kwargs):
        raise RuntimeError("no code for this card")

    monkeypatch.setattr(mla_layers.mla_tree_verify, "prepare", missing)
    with pytest.raises(RuntimeError, match="no code for this card"):
        gpu_backend(_scene())


@pytest.mark.parametrize(
    "change,flag",
    [
        ({"kv_cache_dtype": torch.float8_e4m3fn}, "--kv-cache-dtype"),
        ({"dtype": torch.float16}, "--dtype"),
        ({"page_size": 128}, "--page-size"),
        ({"is_draft_worker": True}, "--speculative-draft-attention-backend"),
        ({"use_mla_backend": False}, "--attention-backend triton"),
        ({"decode_num_tokens_per_req": lambda: 258}, "--speculative-num-draft-tokens"),
        ({"kv_index_translator": SimpleNamespace(needs_read_translate=True)}, "--enable-unified-memory"),
    ],
)
def test_refused_by_what_the_runner_has(change, flag):
    with pytest.raises(ValueError, match=f"--attention-backend ddtree_sm120: .*{flag}"):
        gpu_backend(_scene(), **change)


@pytest.mark.parametrize(
    "options,match",
    [
        ({"logit_cap": 3.0}, "logit cap"),
        ({"sliding_window_size": 7}, "sliding window"),
        ({"is_cross_attention": True}, "causal self-attention"),
    ],
)
def test_refused_layers(options, match):
    step = Scene(MLA, torch.bfloat16, 1, DECODE, [3], [1], None, options)
    with pytest.raises(NotImplementedError, match=match):
        gpu_backend(step).forward(step.q, None, None, step.layer(), step.batch())


def test_layer_without_a_kernel():
    step = Scene(GQA, torch.bfloat16, 1, DECODE, [3], [1])
    with pytest.raises(NotImplementedError, match="2 KV heads of 32"):
        gpu_backend(_scene()).forward(step.q, None, None, step.layer(), step.batch())


def _attention_of_deepseek(absorbed: RadixAttention) -> torch.nn.Module:
    """As SGLang's DeepSeek models have it: the absorbed form, and the multi-head one that their prefill calls."""
    module = torch.nn.Module()
    module.attn_mqa = absorbed
    module.attn_mha = RadixAttention(4, 192, 1.0, num_kv_heads=4, layer_id=0, v_head_dim=128)
    return module


def test_a_model_is_looked_at():
    step = _scene()
    gpu_backend(step, model=_attention_of_deepseek(step.layer()))
    capped = Scene(MLA, torch.bfloat16, 1, EXTEND, [3, 0], [4, 2], None, {"logit_cap": 3.0})
    with pytest.raises(ValueError, match=r"--attention-backend ddtree_sm120: .*logit cap"):
        gpu_backend(step, model=_attention_of_deepseek(capped.layer()))


SCALES = [(None, None), (torch.tensor([0.37]), torch.tensor([1.9]))]


def _fp8_layer(step: Scene, scales: tuple) -> tuple[GqaLayers, RadixAttention]:
    """Over an fp8 pool of the scene's size, and a layer with those scales."""
    heads = step.heads
    pool = MHATokenToKVPool(
        size=64,
        page_size=1,
        dtype=torch.float8_e4m3fn,
        head_num=heads.kv,
        head_dim=heads.head_dim,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    shape = {"num_heads": heads.query, "num_kv_heads": heads.kv, "head_dim": heads.head_dim}
    layer = step.layer()
    layer.k_scale, layer.v_scale = scales
    layer.k_scale_float, layer.v_scale_float = (None if scale is None else float(scale) for scale in scales)
    return GqaLayers(pool, **shape, page_size=1, device="cpu"), layer


def _window(step: Scene) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(3 * torch.randn(8, step.heads.kv, step.heads.head_dim).bfloat16() for _ in "kv")


@pytest.mark.parametrize("scales", SCALES, ids=["no-scales", "scales"])
def test_rows_as_stored_are_those_of_the_pool(scales):
    step = _scene(heads=MHA)
    layers, layer = _fp8_layer(step, scales)
    k, v = _window(step)
    given = k.clone(), v.clone()
    slots = torch.arange(1, 9)
    layers.store(layer, KVWriteLoc(slots, physical=True), k, v, None)
    assert torch.equal(k, given[0]) and torch.equal(v, given[1])
    buffers = layers._pool.get_key_buffer(0), layers._pool.get_value_buffer(0)
    for rows, buffer, scale in zip(layers.as_stored(layer, k, v), buffers, scales, strict=True):
        stored = buffer[slots].float() * (1 if scale is None else scale)
        torch.testing.assert_close(rows.float(), stored, rtol=2**-8, atol=0)
        assert rows.dtype == torch.bfloat16


@pytest.mark.parametrize("mode,rounded", [("off", False), ("validate", True)])
def test_kernels_are_compared_on_the_same_rows(monkeypatch, mode, rounded):
    """Of an fp8 pool: else what differs is the rounding, by tens of units."""
    got = []

    class Recorder:
        name = "triton"

        def __init__(self, runner):
            pass

        def attend(self, q, k, v, *rest):
            got.extend((k, v))
            return torch.zeros(q.shape[0], q.shape[1])

    monkeypatch.setattr(cuda_backend, "TritonDelegate", Recorder)
    monkeypatch.setattr(switch_module, "_requested", lambda: Requested(mode=VerifyMode(mode)))
    step = Scene(MHA, torch.bfloat16, 1, VERIFY, [3, 0], [4, 4])
    backend = gpu_backend(step)
    backend._layers, layer = _fp8_layer(step, SCALES[1])
    monkeypatch.setattr(backend._layers, "attend", lambda step, q, q_rope, layer: torch.zeros(q.shape))
    backend.forward_metadata = SimpleNamespace(prefix_lens=torch.tensor(step.prefix, dtype=torch.int32))
    k, v = _window(step)
    batch = step.batch()
    batch.out_cache_loc = torch.arange(1, 9)
    backend.forward(step.q.flatten(1), k, v, layer, batch)
    expected = backend._layers.as_stored(layer, k, v) if rounded else (k, v)
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])
    assert rounded is not torch.equal(got[0], k)


def test_unknown_argument_and_drafting():
    step = Scene(MLA, torch.bfloat16, 1, DECODE, [3], [1])
    with pytest.raises(NotImplementedError, match="attn_sink"):
        gpu_backend(step).forward(step.q, None, None, step.layer(), step.batch(), attn_sink=torch.zeros(1))
    batch = step.batch()
    batch.forward_mode = ForwardMode.DRAFT_EXTEND_V2
    with pytest.raises(NotImplementedError, match="--speculative-draft-attention-backend"):
        gpu_backend(step).forward(step.q, None, None, step.layer(), batch)


def test_eager_buffers_grow_with_the_batch():
    backend = gpu_backend(_scene())
    first = backend._buffers_for_eager(3, 4)
    assert first is backend._buffers_for_eager(4, 4)
    assert first is not backend._buffers_for_eager(5, 4)
    backend.init_cuda_graph_state(8, 8 * 4)
    assert backend._buffers_for_eager(8, 4) is backend._graph_buffers

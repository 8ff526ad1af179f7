# SPDX-License-Identifier: Apache-2.0
"""The CPU implementation of ``ddtree_sm120`` against dense float64 attention."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from scene import GQA, MHA, MLA, Scene, byte_mask, mask_words, random_tree
from sglang.srt.layers.attention.ddtree_sm120 import cpu_attention, plan
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_utils import TreeMaskMode

# float32: products of up to 576 terms; bfloat16: inputs are exact, so the one rounding of the output remains.
TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 2e-6}, torch.bfloat16: {"rtol": 2**-8, "atol": 1e-5}}
HEADS = pytest.mark.parametrize("heads", [GQA, MHA, MLA], ids=["gqa", "mha", "mla"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
PAGES = pytest.mark.parametrize("page_size", [1, 16, 64])


def _assert_right(scene: Scene, spec_info: object | None = None, **kwargs) -> None:
    torch.testing.assert_close(
        scene.run(spec_info, **kwargs), scene.expected(kwargs.get("sinks")), **TOLERANCE[scene.dtype]
    )


def _verify_scene(heads, dtype, page_size, num_nodes, prefix, seed=0, **layer_options) -> Scene:
    rng = random.Random(seed + num_nodes)
    parents = [random_tree(rng, num_nodes) for _ in prefix]
    return Scene(
        heads,
        dtype,
        page_size,
        ForwardMode.TARGET_VERIFY,
        prefix,
        [num_nodes] * len(prefix),
        parents,
        layer_options,
        seed,
    )


def _words(scene: Scene, **more) -> SimpleNamespace:
    return SimpleNamespace(draft_token_num=scene.new[0], custom_mask=None, mask_words=mask_words(scene.parents), **more)


@HEADS
@DTYPES
@PAGES
@pytest.mark.parametrize("num_nodes", [1, 2, 8, 31, 32, 33, 64, 65])
def test_tree_verify(heads, dtype, page_size, num_nodes):
    scene = _verify_scene(heads, dtype, page_size, num_nodes, prefix=[0, 1, 40, 15, 16, 129])
    _assert_right(scene, _words(scene))


@pytest.mark.parametrize("seed", range(8))
def test_random_trees_and_lengths(seed):
    rng = random.Random(seed)
    heads = rng.choice([GQA, MHA, MLA])
    prefix = [rng.choice([0, 1, rng.randrange(200)]) for _ in range(rng.randrange(1, 6))]
    scene = _verify_scene(heads, torch.float32, rng.choice([1, 16, 64]), rng.randrange(1, 66), prefix, seed)
    _assert_right(scene, _words(scene))


@pytest.mark.parametrize(
    "layout", ["int32 words", "uint32 words", "static words", "full", "full uint8", "qlen", "device default"]
)
def test_mask_layouts(layout):
    """Every layout gives the same result; the words may come in a buffer for more requests than there are."""
    scene = _verify_scene(GQA, torch.float32, 1, 33, prefix=[0, 1, 70])
    spec_info = SimpleNamespace(draft_token_num=33, custom_mask=None)
    if layout.endswith("words"):
        words = mask_words(scene.parents, torch.uint32 if "uint32" in layout else torch.int32)
        if layout == "static words":
            words = torch.cat([words, torch.zeros(5, *words.shape[1:], dtype=words.dtype)])
        spec_info.mask_words = words
    elif layout.startswith("full"):
        spec_info.tree_mask_mode = TreeMaskMode.FULL_MASK
        mask = byte_mask(scene.parents, scene.prefix)
        spec_info.custom_mask = mask.to(torch.uint8) if "uint8" in layout else mask
    else:
        # SGLang's builders make the QLEN_ONLY mask on a CPU and declare nothing.
        if layout == "qlen":
            spec_info.tree_mask_mode = TreeMaskMode.QLEN_ONLY
        spec_info.custom_mask = byte_mask(scene.parents, None)
    _assert_right(scene, spec_info)


def test_words_come_before_a_byte_mask():
    scene = _verify_scene(GQA, torch.float32, 1, 9, prefix=[12])
    spec_info = _words(scene)
    spec_info.custom_mask = torch.ones(81, dtype=torch.bool)
    _assert_right(scene, spec_info)


@HEADS
@pytest.mark.parametrize("num_nodes", [1, 8, 65])
def test_no_mask_is_a_chain(heads, num_nodes):
    scene = Scene(heads, torch.float32, 16, ForwardMode.TARGET_VERIFY, [0, 1, 50], [num_nodes] * 3)
    _assert_right(scene)


@HEADS
@DTYPES
@PAGES
def test_decode(heads, dtype, page_size):
    prefix = [0, 1, 63, 64, 65, 200, 3]
    _assert_right(Scene(heads, dtype, page_size, ForwardMode.DECODE, prefix, [1] * len(prefix)))


@HEADS
@DTYPES
@PAGES
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.MIXED])
def test_ragged_extend(heads, dtype, page_size, mode):
    """Prefill, a cached prefix, chunks of one token, decodes among them, and a request with nothing to do."""
    _assert_right(Scene(heads, dtype, page_size, mode, [0, 0, 100, 17, 5, 128], [1, 70, 1, 40, 0, 64]))


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.TARGET_VERIFY], ids=["extend", "verify"])
@pytest.mark.parametrize("window", [-1, 5])
def test_bidirectional_layer(mode, window):
    """The DFLASH drafter: the whole window sees itself; a sliding window limits how far back, not ahead."""
    options = {"attn_type": AttentionType.ENCODER_ONLY, "sliding_window_size": window}
    _assert_right(Scene(GQA, torch.float32, 1, mode, [0, 1, 30], [8, 8, 8], None, options))


@PAGES
@pytest.mark.parametrize("window", [1, 3, 16, 1000])
@pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.EXTEND])
def test_sliding_window(mode, window, page_size):
    new = [1, 1, 1] if mode.is_decode() else [20, 1, 45]
    options = {"sliding_window_size": window}
    _assert_right(Scene(GQA, torch.float32, page_size, mode, [0, 2, 90], new, None, options))


@pytest.mark.parametrize("window", [1, 3, 16, 1000])
def test_sliding_window_counts_depth_in_a_tree(window):
    scene = _verify_scene(GQA, torch.float32, 1, 40, prefix=[0, 2, 90], sliding_window_size=window)
    _assert_right(scene, _words(scene))


@HEADS
def test_logit_cap(heads):
    scene = _verify_scene(heads, torch.float32, 1, 12, prefix=[3, 60], logit_cap=0.7)
    _assert_right(scene, _words(scene))


@pytest.mark.parametrize("magnitude", [0.0, 30.0, -30.0])
def test_sinks(magnitude):
    scene = _verify_scene(GQA, torch.float32, 1, 12, prefix=[3, 60])
    sinks = torch.randn(GQA.query, generator=torch.Generator().manual_seed(1)) + magnitude
    _assert_right(scene, _words(scene), sinks=sinks)


def test_large_scores_do_not_overflow():
    scene = _verify_scene(GQA, torch.float32, 1, 12, prefix=[3, 60], scaling=300.0)
    _assert_right(scene, _words(scene))


@HEADS
@pytest.mark.parametrize("mask_cache", [0, 1 << 30])
def test_tiles_of_queries(monkeypatch, heads, mask_cache):
    """Three queries a tile, with the tiles' masks kept and not kept."""
    monkeypatch.setattr(cpu_attention, "_TILE_SCORES", 3 * 2 * heads.query * 90)
    monkeypatch.setattr(plan, "_CACHED_MASK_BYTES", mask_cache)
    scene = _verify_scene(heads, torch.float32, 1, 25, prefix=[40, 64])
    _assert_right(scene, _words(scene))


def test_kv_that_is_stored_already():
    scene = _verify_scene(GQA, torch.float32, 16, 8, prefix=[3, 60])
    scene.run(_words(scene))
    backend_input = scene.run(_words(scene), save_kv_cache=False)
    torch.testing.assert_close(backend_input, scene.expected(), **TOLERANCE[torch.float32])


def test_rows_of_no_request_are_zero():
    """A padded query tensor: the rows behind the batch belong to nobody."""
    scene = Scene(GQA, torch.float32, 1, ForwardMode.DECODE, [4, 9], [1, 1])
    scene.q = torch.cat([scene.q, scene.q[:1]])
    out = scene.run()
    torch.testing.assert_close(out[:2], scene.expected()[:2], **TOLERANCE[torch.float32])
    assert out[2].abs().sum() == 0


def test_idle_step_plans_nothing():
    batch = SimpleNamespace(forward_mode=ForwardMode.IDLE, seq_lens=torch.empty(0, dtype=torch.int64))
    idle = plan.build_plan(batch, torch.zeros(1, 1, dtype=torch.int32))
    assert (idle.groups, idle.num_tokens, idle.has_tree) == ([], 0, False)

# SPDX-License-Identifier: Apache-2.0
"""What the backend must refuse rather than compute something else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from scene import GQA, Scene, byte_mask, mask_words
from sglang.srt.layers.attention.ddtree_sm120 import cpu_backend
from sglang.srt.layers.attention.ddtree_sm120_backend import create_ddtree_sm120_backend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_utils import TreeMaskMode

TREE = [[-1, 0, 0, 1]]


def _scene(mode: ForwardMode = ForwardMode.TARGET_VERIFY, **layer_options) -> Scene:
    return Scene(GQA, torch.float32, 1, mode, [6], [4], TREE, layer_options)


def _verify(**attributes) -> SimpleNamespace:
    return SimpleNamespace(**{"draft_token_num": 4, "custom_mask": None, **attributes})


def test_mask_of_the_other_layout():
    """The fault that silently gave wrong tokens: a QLEN_ONLY mask read as FULL_MASK, and the reverse."""
    with pytest.raises(ValueError, match=r"FULL_MASK.*40"):
        _scene().run(_verify(custom_mask=byte_mask(TREE, None), tree_mask_mode=TreeMaskMode.FULL_MASK))
    with pytest.raises(ValueError, match=r"QLEN_ONLY.*16"):
        _scene().run(_verify(custom_mask=byte_mask(TREE, [6])))


def test_mask_that_hides_the_prefix():
    mask = byte_mask(TREE, [6])
    mask[2] = False
    with pytest.raises(ValueError, match="committed tokens"):
        _scene().run(_verify(custom_mask=mask, tree_mask_mode=TreeMaskMode.FULL_MASK))


def test_blind_node():
    mask = byte_mask(TREE, None)
    mask[5] = False
    with pytest.raises(ValueError, match="does not see itself"):
        _scene().run(_verify(custom_mask=mask))


def test_packed_bytes_of_eagle():
    with pytest.raises(NotImplementedError, match="QLEN_ONLY_BITPACKING"):
        _scene().run(
            _verify(custom_mask=torch.ones(4, dtype=torch.uint8), tree_mask_mode=TreeMaskMode.QLEN_ONLY_BITPACKING)
        )


@pytest.mark.parametrize(
    "words", [mask_words(TREE).long(), mask_words(TREE)[:, :3], mask_words(TREE)[0], mask_words(TREE)[:0]]
)
def test_words_of_a_wrong_shape_or_type(words):
    with pytest.raises(ValueError, match="mask_words"):
        _scene().run(_verify(mask_words=words))


def test_bidirectional_layer_with_a_tree():
    with pytest.raises(ValueError, match="both directions"):
        _scene(attn_type=AttentionType.ENCODER_ONLY).run(_verify(mask_words=mask_words(TREE)))


@pytest.mark.parametrize(
    "mode", [ForwardMode.DRAFT_EXTEND_V2, ForwardMode.DLLM_EXTEND, ForwardMode.SPLIT_PREFILL, ForwardMode.PREBUILT]
)
def test_other_forward_modes(mode):
    with pytest.raises(NotImplementedError, match=mode.name):
        _scene(mode).run()


@pytest.mark.parametrize(
    "options,match",
    [
        ({"is_cross_attention": True}, "cross attention"),
        ({"logit_cap": 3.0, "logit_capping_method": "sigmoid"}, "sigmoid"),
        ({"attn_type": AttentionType.DECODER_BIDIRECTIONAL}, "decoder_bidirectional"),
    ],
)
def test_other_layers(options, match):
    with pytest.raises(NotImplementedError, match=match):
        _scene(**options).run(_verify(mask_words=mask_words(TREE)))


def test_unknown_argument():
    with pytest.raises(NotImplementedError, match="topk_indices"):
        _scene().run(_verify(mask_words=mask_words(TREE)), topk_indices=torch.zeros(1))


def test_other_devices():
    runner = _scene().runner()
    runner.device = "npu"
    with pytest.raises(RuntimeError, match="not on device 'npu'"):
        create_ddtree_sm120_backend(runner)


def test_quantised_kv():
    runner = _scene().runner()
    runner.kv_cache_dtype = torch.float8_e4m3fn
    with pytest.raises(ValueError, match="--kv-cache-dtype"):
        create_ddtree_sm120_backend(runner)


def test_split_pool(monkeypatch):
    monkeypatch.setattr(cpu_backend, "BaseSWAKVPool", MHATokenToKVPool)
    with pytest.raises(ValueError, match="--disable-hybrid-swa-memory"):
        create_ddtree_sm120_backend(_scene().runner())

# SPDX-License-Identifier: Apache-2.0
"""SGLang's own test kit of attention backends for GQA, with ``ddtree_sm120``; and a drafter's block, which it lacks."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from backend_scene import random_tree, sees
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.test.kits.attention_unittest.attention_methods import dense_attention as kit
from sglang.test.kits.attention_unittest.runner_modes import cuda_graph_decode_runner as decode
from sglang.test.kits.attention_unittest.runner_modes import speculative_target_verify_runner as verify

SIZES = {"head_dim": 128, "dtype": torch.bfloat16}
# The kit calls a test off when a backend cannot be built; here that is a failure.
TESTCASE = SimpleNamespace(skipTest=pytest.fail)


def _named(cases):
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def _verify_case(num_nodes: int, prefix: tuple[int, ...], page_size: int, heads=(8, 2)) -> kit.DenseAttentionCase:
    return kit.DenseAttentionCase(
        name=f"verify_{num_nodes}_page_{page_size}",
        backend="ddtree_sm120",
        forward_mode=ForwardMode.TARGET_VERIFY,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        page_size=page_size,
        prefix_lens=prefix,
        extend_lens=(num_nodes,) * len(prefix),
    )


CASES = kit.make_dense_cases("ddtree_sm120")
VERIFY_CASES = [_verify_case(3, (4, 7), 1), _verify_case(3, (14, 15), 16), _verify_case(3, (16, 31), 16)]
TREES = pytest.mark.parametrize("topk,kind", [(1, "eagle"), (1, "dflash"), (1, "ngram"), (2, "eagle"), (2, "ngram")])


@_named(CASES)
def test_case(case):
    kit.run_dense_attention_case(TESTCASE, case, **SIZES)


@_named([case for case in CASES if case.forward_mode.is_decode()])
def test_decode_under_a_graph(case):
    decode.run_dense_cuda_graph_decode_case(TESTCASE, case, **SIZES)


@_named(VERIFY_CASES)
@TREES
def test_verify(case, topk, kind):
    verify.run_dense_spec_verify_case(TESTCASE, case, topk=topk, spec_kind=kind, **SIZES)


@pytest.fixture
def contiguous(monkeypatch):
    """The kit writes the committed rows of its graph cases to consecutive slots, so the batch must not have others."""
    build = partial(kit.build_dense_attention_fixture, loc_layout="contiguous")
    monkeypatch.setattr(verify, "build_dense_attention_fixture", build)


@_named(VERIFY_CASES)
@TREES
def test_verify_under_a_graph(contiguous, case, topk, kind):
    verify.run_dense_spec_verify_cuda_graph_case(TESTCASE, case, topk=topk, spec_kind=kind, **SIZES)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("page_size", [1, 16])
def test_random_trees(monkeypatch, seed, page_size):
    rng = random.Random(seed)
    num_nodes = rng.choice([2, 9, 17, 31])
    tree = sees(random_tree(rng, num_nodes))
    monkeypatch.setattr(verify, "_draft_tree_mask", lambda *, draft_token_num, topk, device: tree.to(device))
    case = _verify_case(num_nodes, (0, 4, 15, 31), page_size)
    verify.run_dense_spec_verify_case(TESTCASE, case, topk=2, spec_kind="ngram", **SIZES)


@pytest.mark.parametrize("num_nodes", [8, 16])
@pytest.mark.parametrize("page_size", [1, 16])
def test_drafters_block(num_nodes, page_size):
    """Layers of type ENCODER_ONLY see the whole window in both directions."""
    case = _verify_case(num_nodes, (5, 16, 31), page_size, heads=(8, 1))
    fixture = kit.build_dense_attention_fixture(TESTCASE, case, **SIZES)
    for layer in kit.dense_attention_layers(fixture):
        layer.attn_type = AttentionType.ENCODER_ONLY
    batch, inputs = fixture.forward_batch, kit.dense_fixture_inputs(fixture)
    verify._prepare_target_verify_batch(batch, case, "cuda")
    batch.spec_info = verify._make_spec_verify_input(case, batch, topk=1, device="cuda", spec_kind="dflash")
    batch.spec_info.custom_mask = None  # as the worker leaves it, which drafts by type of layer
    everything = [
        torch.ones(num_nodes, prefix + num_nodes, dtype=torch.bool, device="cuda") for prefix in case.prefix_lens
    ]
    expected = kit.dense_attention_reference_with_custom_mask(
        fixture.reference_module, case, inputs["prefix_hidden"], inputs["input_hidden"], everything
    )
    with torch.no_grad(), forward_context(ForwardContext(attn_backend=fixture.backend)):
        fixture.backend.init_forward_metadata(batch)
        actual = kit.run_dense_forward(fixture, batch, inputs)
    torch.testing.assert_close(actual, expected, atol=2e-2, rtol=2e-2)

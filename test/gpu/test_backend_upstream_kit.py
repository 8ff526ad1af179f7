# SPDX-License-Identifier: Apache-2.0
"""SGLang's own test kit of attention backends, with ``ddtree_sm120`` in place of the backend that it names.

The kit's MLA cases run at the latent and rotary sizes of DeepSeek. Its trees have three nodes; here they are random
too.
"""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from backend_scene import LATENT, ROPE, random_tree, sees
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.test.kits.attention_unittest.attention_methods import mla_attention as kit
from sglang.test.kits.attention_unittest.runner_modes import cuda_graph_decode_runner as decode
from sglang.test.kits.attention_unittest.runner_modes import speculative_target_verify_runner as verify
from sglang.test.kits.attention_unittest.runner_modes import split_op_runner as prefill_graph

CASES = kit.make_mla_cases("ddtree_sm120")
SIZES = {"kv_lora_rank": LATENT, "qk_rope_head_dim": ROPE, "dtype": torch.bfloat16}
# The kit calls a test off when a backend cannot be built; here that is a failure.
TESTCASE = SimpleNamespace(skipTest=pytest.fail)


def _named(cases):
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


@_named(CASES)
@pytest.mark.parametrize("loc_layout", ["contiguous", "shuffled_pages", "interleaved_pages"])
def test_case(case, loc_layout):
    kit.run_mla_attention_case(TESTCASE, case, loc_layout=loc_layout, **SIZES)


@_named([case for case in CASES if case.forward_mode.is_decode()])
def test_decode_under_a_graph(case):
    decode.run_mla_cuda_graph_decode_case(TESTCASE, case, **SIZES)


def _verify_case(num_nodes: int, prefix: tuple[int, ...], page_size: int) -> kit.MLAAttentionCase:
    return kit.MLAAttentionCase(
        name=f"verify_{num_nodes}_page_{page_size}",
        backend="ddtree_sm120",
        forward_mode=ForwardMode.TARGET_VERIFY,
        num_heads=4,
        page_size=page_size,
        prefix_lens=prefix,
        extend_lens=(num_nodes,) * len(prefix),
    )


VERIFY_CASES = [_verify_case(3, (4, 7), 1), _verify_case(3, (14, 15), 16), _verify_case(3, (16, 31), 16)]
TREES = pytest.mark.parametrize("topk,kind", [(1, "eagle"), (1, "dflash"), (1, "ngram"), (2, "eagle"), (2, "ngram")])


@_named(VERIFY_CASES)
@TREES
def test_verify(case, topk, kind):
    verify.run_mla_eagle_verify_case(TESTCASE, case, topk=topk, spec_kind=kind, **SIZES)


@pytest.fixture
def contiguous(monkeypatch):
    """The kit writes the committed rows of its graph cases to consecutive slots, so the batch must not have others."""
    build = partial(kit.build_mla_attention_fixture, loc_layout="contiguous")
    for runner in (verify, prefill_graph):
        monkeypatch.setattr(runner, "build_mla_attention_fixture", build)


@_named([case for case in CASES if not case.forward_mode.is_decode()])
@pytest.mark.parametrize("breakable", [True, False])
def test_prefill_inside_a_graph(contiguous, case, breakable):
    """Captured prefill, which is SGLang's default on CUDA, padded by five tokens."""
    tokens = case.num_input_tokens + 5
    prefill_graph.run_mla_split_op_extend_case(TESTCASE, case, breakable=breakable, static_num_tokens=tokens, **SIZES)


@_named(VERIFY_CASES)
@TREES
def test_verify_under_a_graph(contiguous, case, topk, kind):
    verify.run_mla_eagle_verify_cuda_graph_case(TESTCASE, case, topk=topk, spec_kind=kind, **SIZES)


@pytest.fixture(params=range(6))
def random_trees(request, monkeypatch) -> int:
    """The kit's builder of trees of three nodes, replaced by one of random trees; returns their size."""
    rng = random.Random(request.param)
    num_nodes = rng.choice([2, 5, 9, 17, 31])
    tree = sees(random_tree(rng, num_nodes))
    monkeypatch.setattr(verify, "_draft_tree_mask", lambda *, draft_token_num, topk, device: tree.to(device))
    return num_nodes


@pytest.mark.parametrize("kind", ["eagle", "ngram"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_random_trees(random_trees, kind, page_size):
    case = _verify_case(random_trees, (0, 4, 15, 31), page_size)
    verify.run_mla_eagle_verify_case(TESTCASE, case, topk=2, spec_kind=kind, **SIZES)


@pytest.mark.parametrize("kind", ["eagle", "ngram"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_random_trees_under_a_graph(contiguous, random_trees, kind, page_size):
    case = _verify_case(random_trees, (3, 15), page_size)
    verify.run_mla_eagle_verify_cuda_graph_case(TESTCASE, case, topk=2, spec_kind=kind, **SIZES)

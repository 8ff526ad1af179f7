# SPDX-License-Identifier: Apache-2.0
"""The C++ CPU twin of gqa_tree_verify against the float64 reference, and the checks of its binding."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from gqa_cases import GqaInputs, GqaSpec, build, errors_of

# Storage rounds the result once; everything before it is float32.
LIMITS = {torch.float32: 2e-5, torch.bfloat16: 4e-3}
ROW_LIMITS = {torch.float32: 1e-4, torch.bfloat16: 8e-3}


def check(spec: GqaSpec) -> GqaInputs:
    inputs = build(spec, "cpu")
    inputs.run()
    errors = errors_of(inputs, torch.float64)
    assert errors.relative <= LIMITS[spec.dtype], errors
    assert errors.worst_row <= ROW_LIMITS[spec.dtype], errors
    assert errors.lse <= 1e-5, errors
    return inputs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("nodes", [1, 2, 8, 17, 33, 64, 257])
def test_node_counts(nodes: int, dtype: torch.dtype) -> None:
    check(GqaSpec([0, 45, -1, 1], nodes, 3, 1, 64, page_size=4, seed=nodes, dtype=dtype))


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize(("group", "kv_heads"), [(1, 1), (1, 8), (5, 3), (7, 2), (8, 4), (16, 1)])
def test_heads(group: int, kv_heads: int, dim: int) -> None:
    check(GqaSpec([33, 0], 5, group, kv_heads, dim, page_size=16, seed=group))


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 32, 64])
def test_page_sizes(page_size: int) -> None:
    check(GqaSpec([page_size - 1, page_size, 3 * page_size + 1, 0], 9, 3, page_size=page_size))


@pytest.mark.parametrize("tree", ["random", "chain", "star", "forest", "bushy", "block"])
@pytest.mark.parametrize("window", [-1, 0, 1, 7, 50])
def test_trees_and_windows(tree: str, window: int) -> None:
    check(GqaSpec([70, 0, 20], 34, 2, 1, 64, page_size=2, tree=tree, window=window, dtype=torch.float32))


def test_window_counts_positions_not_nodes() -> None:
    # A star: every leaf stands at depth 1, so all see the same stretch of the prefix, the last leaf too.
    inputs = build(GqaSpec([30], 9, 1, 1, tree="star", window=4, dtype=torch.float32), "cpu")
    inputs.q[1:] = inputs.q[1].clone()
    slots = inputs.page_table[0, 30:39].long()
    for pool in (inputs.k_pool, inputs.v_pool):
        pool[slots[1:]] = pool[slots[1]].clone()
    inputs.run()
    assert torch.equal(inputs.out[8], inputs.out[1])
    keys, values = (
        pool[inputs.page_table[0, [*range(27, 31), 38]].long(), 0].double() for pool in (inputs.k_pool, inputs.v_pool)
    )
    weights = (inputs.q[8, 0].double() @ keys.T * inputs.sm_scale).softmax(0)
    torch.testing.assert_close(inputs.out[8, 0].double(), weights @ values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_logit_cap(cap: float) -> None:
    check(GqaSpec([100, 4], 6, logit_cap=cap, q_scale=4.0, dtype=torch.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_fp8_pool(dtype: torch.dtype) -> None:
    check(GqaSpec([100, 0, -1], 6, fp8=True, k_scale=0.5, v_scale=3.0, dtype=dtype))


def test_strides() -> None:
    check(GqaSpec([20, 3], 6, q_pad=8, kv_pad=16))


def test_no_lse_and_large_scores() -> None:
    check(GqaSpec([100], 4, with_lse=False, q_scale=8.0, dtype=torch.float32))


def test_row_that_sees_nothing_is_zero() -> None:
    inputs = build(GqaSpec([0, 7], 4, window=0), "cpu")
    inputs.mask_words[:, 2] = 0  # not even itself; the window hides the prefix
    inputs.run()
    assert errors_of(inputs, torch.float64).relative <= 4e-3
    assert bool((inputs.out[[2, 6]] == 0).all()) and not bool((inputs.out[0] == 0).all())


def test_empty_batch_returns() -> None:
    inputs = build(GqaSpec([5], 2), "cpu")
    for name in ("q", "out", "page_table", "prefix_lens", "mask_words", "lse"):
        setattr(inputs, name, getattr(inputs, name)[:0])
    inputs.run()


BAD_ARGUMENTS = {
    r"\(head size\) must be 64, 128 or 256, got 96": lambda i: {
        "q": torch.zeros(6, 8, 96, dtype=torch.bfloat16),
    },
    "query heads must be 1 to 16 times the KV heads": lambda i: {"k_pool": i.k_pool[:, :1].expand(-1, 3, -1)},
    r"q\.shape\[0\]": lambda i: {"q": i.q[1:]},
    "out must have the dtype of q": lambda i: {"out": i.out.float()},
    "k_pool must have the dtype of q": lambda i: {"k_pool": i.k_pool.half()},
    "v_pool must have the dtype of k_pool": lambda i: {"v_pool": i.v_pool.to(torch.float8_e4m3fn)},
    r"v_pool\.shape\[0\]": lambda i: {"v_pool": i.v_pool[1:]},
    r"v_pool\.shape\[1\]": lambda i: {"v_pool": i.v_pool[:, :1]},
    "k_pool: data must be 16-byte aligned": lambda i: {
        "k_pool": torch.zeros(i.k_pool.numel() + 1, dtype=torch.bfloat16)[1:].view(i.k_pool.shape)
    },
    "last dimension must be contiguous": lambda i: {"q": torch.zeros(6, 8, 256, dtype=torch.bfloat16)[..., ::2]},
    "page_table must be int32": lambda i: {"page_table": i.page_table.long()},
    "prefix_lens must be int32": lambda i: {"prefix_lens": i.prefix_lens.long()},
    r"page_table\.shape\[0\]": lambda i: {"page_table": i.page_table[:1]},
    "mask_words must be int32 or uint32": lambda i: {"mask_words": i.mask_words.long()},
    r"lse\.shape\[0\]": lambda i: {"lse": i.lse[1:]},
    "page_size must be a power of two": lambda i: {"spec": dataclasses.replace(i.spec, page_size=3)},
    "num_nodes must be 1 to 257": lambda i: {"spec": dataclasses.replace(i.spec, nodes=258)},
    "logit_cap must not be negative": lambda i: {"spec": dataclasses.replace(i.spec, logit_cap=-1.0)},
    "belong to an fp8 pool": lambda i: {"spec": dataclasses.replace(i.spec, k_scale=2.0)},
}


@pytest.mark.parametrize("message", BAD_ARGUMENTS)
def test_bad_argument_is_named(message: str) -> None:
    inputs = build(GqaSpec([4, 5], 3), "cpu")
    for name, value in BAD_ARGUMENTS[message](inputs).items():
        setattr(inputs, name, value)
    with pytest.raises(ValueError, match=message):
        inputs.run()

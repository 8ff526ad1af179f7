# SPDX-License-Identifier: Apache-2.0
"""The C++ CPU twin of mla_tree_verify against the float64 reference, and the checks of its binding."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from cases import SM_SCALE, Inputs, Spec, build, errors_of

# Storage rounds the result once; everything before it is float32.
LIMITS = {torch.float32: 2e-5, torch.bfloat16: 4e-3}
ROW_LIMITS = {torch.float32: 1e-4, torch.bfloat16: 8e-3}


def check(spec: Spec) -> Inputs:
    inputs = build(spec, "cpu")
    inputs.run()
    errors = errors_of(inputs, torch.float64)
    assert errors.relative <= LIMITS[spec.dtype], errors
    assert errors.worst_row <= ROW_LIMITS[spec.dtype], errors
    assert errors.lse <= 1e-5, errors
    return inputs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 8, 17, 31, 32, 33, 64, 65, 257])
def test_every_node_count(nodes: int, dtype: torch.dtype) -> None:
    check(Spec(lens=[0, 45, -1, 1], nodes=nodes, heads=2, page_size=4, seed=nodes, dtype=dtype))


@pytest.mark.parametrize("heads", [1, 5, 8, 20, 128])
def test_head_counts(heads: int) -> None:
    check(Spec(lens=[33, 0], nodes=5, heads=heads, page_size=16, seed=heads))


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 32, 64])
def test_page_sizes(page_size: int) -> None:
    check(Spec(lens=[page_size - 1, page_size, 3 * page_size + 1, 0], nodes=9, heads=3, page_size=page_size))


@pytest.mark.parametrize("tree", ["random", "chain", "star", "forest", "bushy"])
def test_trees(tree: str) -> None:
    check(Spec(lens=[70, 0], nodes=40, heads=2, tree=tree))


@pytest.mark.parametrize("layout", ["joint", "split", "transposed", "strided"])
def test_layouts(layout: str) -> None:
    check(Spec(lens=[20, 3], nodes=6, heads=4, layout=layout, kv_pad=16, kv_3d=layout == "split"))


def test_every_length_to_two_key_blocks() -> None:
    check(Spec(lens=list(range(-1, 70)), nodes=3, heads=2, page_size=2))


def test_large_scores_stay_finite() -> None:
    check(Spec(lens=[100], nodes=4, heads=2, q_scale=8.0, dtype=torch.float32))


def test_no_lse() -> None:
    check(Spec(lens=[10], nodes=4, heads=2, with_lse=False))


def test_row_that_sees_nothing_is_zero() -> None:
    inputs = build(Spec(lens=[0, 7], nodes=4, heads=2), "cpu")
    inputs.mask_words[:, 2] = 0  # not even itself
    inputs.run()
    errors = errors_of(inputs, torch.float64)
    assert errors.relative <= 4e-3
    assert bool((inputs.out[2] == 0).all()) and not bool((inputs.out[4 + 2] == 0).all())


def test_thread_count_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for threads in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        inputs = build(Spec(lens=[50, 3, 200], nodes=9, heads=8, seed=1), "cpu")
        inputs.run()
        results.append(inputs.out.clone())
    assert torch.equal(results[0], results[1])


def test_empty_batch_returns() -> None:
    inputs = build(Spec(lens=[5], nodes=2, heads=2), "cpu")
    for name in ("q_nope", "q_rope", "out", "page_table", "prefix_lens", "mask_words", "lse"):
        setattr(inputs, name, getattr(inputs, name)[:0])
    inputs.run()


BAD_ARGUMENTS = {
    r"\(heads\) must be 1 to 128": lambda i: {
        "q_nope": torch.zeros(6, 129, 512, dtype=torch.bfloat16),
        "q_rope": torch.zeros(6, 129, 64, dtype=torch.bfloat16),
    },
    r"q_rope\.shape\[2\]": lambda i: {"q_rope": i.q_rope[..., :32]},
    r"q_nope\.shape\[0\]": lambda i: {"q_nope": i.q_nope[1:]},
    "out must have the dtype": lambda i: {"out": i.out.float()},
    "kv_pool must be": lambda i: {"kv_pool": i.kv_pool[None, None]},
    r"kv_pool\.shape\[1\]": lambda i: {"kv_pool": torch.zeros(4, 512, dtype=torch.bfloat16)},
    "kv_pool: data must be 16-byte aligned": lambda i: {
        "kv_pool": torch.zeros(40 * 576 + 1, dtype=torch.bfloat16)[1:].view(40, 576)
    },
    "q_nope: stride 5": lambda i: {"q_nope": torch.zeros(6, 2, 580, dtype=torch.bfloat16)[..., :512]},
    "last dimension must be contiguous": lambda i: {"q_nope": torch.zeros(6, 2, 1024, dtype=torch.bfloat16)[..., ::2]},
    "page_table must be int32": lambda i: {"page_table": i.page_table.long()},
    "prefix_lens must be int32": lambda i: {"prefix_lens": i.prefix_lens.long()},
    r"page_table\.shape\[0\]": lambda i: {"page_table": i.page_table[:1]},
    "mask_words must be int32 or uint32": lambda i: {"mask_words": i.mask_words.long()},
    r"mask_words\.shape\[2\]": lambda i: {"mask_words": torch.zeros(2, 3, 2, dtype=torch.int32)},
    "lse must be float32": lambda i: {"lse": i.lse.double()},
    r"lse\.shape\[0\]": lambda i: {"lse": i.lse[1:]},
    "page_size must be a power of two": lambda i: {"spec": dataclasses.replace(i.spec, page_size=3)},
    "num_nodes must be 1 to 257": lambda i: {"spec": dataclasses.replace(i.spec, nodes=258)},
}


@pytest.mark.parametrize("message", BAD_ARGUMENTS)
def test_bad_argument_is_named(message: str) -> None:
    inputs = build(Spec(lens=[4, 5], nodes=3, heads=2), "cpu")
    for name, value in BAD_ARGUMENTS[message](inputs).items():
        setattr(inputs, name, value)
    with pytest.raises(ValueError, match=message):
        inputs.run()


def test_scale_is_applied() -> None:
    inputs = build(Spec(lens=[30], nodes=1, heads=1, dtype=torch.float32), "cpu")
    inputs.run()
    keys = inputs.kv_pool[inputs.page_table[0, :31].long()].double()
    scores = torch.cat([inputs.q_nope, inputs.q_rope], -1)[0, 0].double() @ keys.T * SM_SCALE
    torch.testing.assert_close(inputs.out[0, 0].double(), scores.softmax(0) @ keys[:, :512], rtol=1e-4, atol=1e-5)

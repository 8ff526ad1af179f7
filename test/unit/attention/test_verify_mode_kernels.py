# SPDX-License-Identifier: Apache-2.0
"""The comparison of two outputs, the mask in bytes: kernels in Triton's interpreter, torch against plain Python."""

from __future__ import annotations

import math
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import verify_mode_interpreted
from scene import byte_mask, mask_words, random_tree
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.ulp import (
    COLUMNS,
    FRACTION_BITS,
    MAX,
    UlpReport,
    UlpTotals,
    add_rows_torch,
)

SCALE = 1 << FRACTION_BITS


@pytest.fixture(scope="module")
def interpreter():
    with ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=verify_mode_interpreted.start
    ) as pool:
        yield lambda name, **arguments: pool.submit(getattr(verify_mode_interpreted, name), **arguments).result(300)


def _in_torch(served, ours, prefix_lens) -> torch.Tensor:
    totals = torch.zeros(COLUMNS, dtype=torch.int64)
    add_rows_torch(totals, served, ours, prefix_lens)
    return totals


def _in_python(served, ours, prefix_lens) -> UlpReport:
    """Element by element in float64."""
    tokens = served.shape[0] // len(prefix_lens)
    rows = beyond = broken = 0
    worst, means = 0.0, []
    for token in range(served.shape[0]):
        if prefix_lens[token // tokens] < 0:
            continue
        for head in range(served.shape[1]):
            a, b = served[token, head].double().tolist(), ours[token, head].double().tolist()
            rows += 1
            if not all(map(math.isfinite, a + b)):
                broken += 1
                continue
            rms = math.sqrt(sum(x * x for x in a) / len(a))
            errors = [
                abs(y - x) / 2.0 ** (math.floor(math.log2(max(abs(x), rms, 2.0**-100))) - 7)
                for x, y in zip(a, b, strict=True)
            ]
            errors = [min(error, 65536.0) for error in errors]
            worst = max(worst, *errors)
            beyond += max(errors) > 2
            means.append(sum(errors) / len(errors))
    return UlpReport(rows, worst, sum(means) / max(len(means), 1), beyond, broken, 0 if rows else None)


def _outputs(seed: int, dtype: torch.dtype, requests: int = 3, tokens: int = 2, heads: int = 3, width: int = 64):
    """Rows of very different size, with errors from none to a hundred units."""
    g = torch.Generator().manual_seed(seed)
    shape = (requests * tokens, heads, width)
    served = torch.randn(shape, generator=g) * 2.0 ** torch.randint(-30, 30, (*shape[:2], 1), generator=g)
    size = served.square().mean(-1, keepdim=True).sqrt()
    noise = torch.randn(shape, generator=g) * size * 2.0 ** torch.randint(-14, 0, (*shape[:2], 1), generator=g)
    return served.to(dtype), (served + noise).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_torch_against_python(seed, dtype):
    served, ours = _outputs(seed, dtype)
    if seed:
        ours[0, 1, 5], served[3, 0, 7] = float("nan"), float("-inf")
        ours[1, 2] = served[1, 2]
    prefix_lens = torch.tensor([7, -1 if seed == 2 else 0, 3], dtype=torch.int32)
    report = UlpReport.of(_in_torch(served, ours, prefix_lens)[None], 0)
    expected = _in_python(served, ours, prefix_lens)
    assert report.max_ulp == pytest.approx(expected.max_ulp, rel=1e-5, abs=2 / SCALE)
    assert report.mean_ulp == pytest.approx(expected.mean_ulp, rel=1e-5, abs=2 / SCALE)
    for name in ("rows", "rows_beyond_2_ulp", "rows_not_finite", "worst_layer"):
        assert getattr(report, name) == getattr(expected, name), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(3))
def test_kernel_against_torch(interpreter, seed, dtype):
    served, ours = _outputs(seed, dtype, requests=5, tokens=1 + seed, width=(64, 96, 128)[seed])
    if seed:
        ours[0, 1, 5], served[3, 0, 7], ours[4, 2, 0] = float("nan"), float("-inf"), float("inf")
    prefix_lens = torch.tensor([0, 9, -1, 4, 100], dtype=torch.int32)
    start = torch.tensor([5, 4, 3, 2, 1], dtype=torch.int64)
    out = interpreter("add_rows", totals=start.clone(), served=served, ours=ours, prefix_lens=prefix_lens)
    expected = _in_torch(served, ours, prefix_lens)
    expected[:MAX] += start[:MAX]
    assert out[:3].tolist() == expected[:3].tolist()
    # Sums of float32 in another order.
    torch.testing.assert_close(out[3:].double(), expected[3:].double(), rtol=1e-5, atol=64.0)


def test_equal_outputs_have_no_error():
    served, _ = _outputs(0, torch.bfloat16)
    served[0] = 0
    assert _in_torch(served, served.clone(), torch.zeros(3, dtype=torch.int32)).tolist() == [18, 0, 0, 0, 0]


def test_one_unit_is_one_step_of_bf16():
    served = torch.full((1, 1, 64), 1.5, dtype=torch.bfloat16)
    ours = served.clone()
    ours[0, 0, 3] = torch.tensor(1.5 + 2**-7)
    report = UlpReport.of(_in_torch(served, ours, torch.zeros(1, dtype=torch.int32))[None], 0)
    assert (report.max_ulp, report.mean_ulp, report.rows_beyond_2_ulp) == (1.0, 1 / 64, 0)
    ours[0, 0, 3] = torch.tensor(1.5 + 3 * 2**-7)
    report = UlpReport.of(_in_torch(served, ours, torch.zeros(1, dtype=torch.int32))[None], 0)
    assert (report.max_ulp, report.rows_beyond_2_ulp) == (3.0, 1)


def test_layers_and_ranks_are_joined():
    totals = UlpTotals(num_layers=3, first_layer=10, device="cpu")
    served, ours = _outputs(1, torch.bfloat16)
    for layer in (10, 12, 12):
        totals.add(layer, served, ours if layer == 12 else served, torch.zeros(3, dtype=torch.int32))
    one = UlpReport.of(totals.values, totals.first_layer)
    assert one.rows == 3 * 18 and one.worst_layer == 12 and one.max_ulp > 0
    both = UlpReport.of(torch.stack([totals.values, torch.zeros_like(totals.values)]), 10)
    assert both == one
    totals.reset()
    assert UlpReport.of(totals.values, 10) == UlpReport(0, 0.0, 0.0, 0, 0, None)


@pytest.mark.parametrize("num_nodes", [1, 8, 33])
def test_mask_bytes(interpreter, num_nodes):
    rng = random.Random(num_nodes)
    prefix = [5, 0, 1, 17]
    parents = [random_tree(rng, num_nodes) for _ in prefix]
    padded = 2
    words = mask_words(parents)
    words[padded] = -1
    parents[padded] = [node - 1 for node in range(num_nodes)]
    lens = torch.tensor(prefix)
    sizes = num_nodes * (lens + num_nodes)
    out = interpreter(
        "mask_bytes",
        out=torch.ones(int(sizes.sum()) + 3, dtype=torch.uint8),
        row_starts=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
        seq_lens=lens,
        prefix_lens=torch.tensor([5, 0, -1, 17], dtype=torch.int32),
        mask_words=words,
    )
    assert torch.equal(out[:-3].bool(), byte_mask(parents, prefix))
    assert out[-3:].tolist() == [1, 1, 1]

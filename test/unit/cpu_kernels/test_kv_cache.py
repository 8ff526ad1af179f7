# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from sgl_kernel import copy_all_layer_kv_cache_cpu


def _buffers() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [((40, 2, 9), torch.float32), ((40, 1, 64), torch.bfloat16), ((40, 3, 5), torch.float16)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape, dtype in shapes]


@pytest.mark.parametrize(
    "tgt,src",
    [
        ([4], [9]),
        ([10, 11, 12], [10, 13, 19]),
        ([5, 6, 7, 8], [6, 7, 8, 5]),  # a cycle: every source is some target
        ([0, 39], [39, 0]),
        ([3, 4], [3, 4]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_rows_move_in_every_buffer(oracle, tgt, src, dtype):
    buffers = _buffers()
    tgt, src = torch.tensor(tgt, dtype=dtype), torch.tensor(src, dtype=dtype)
    expected = oracle("copy_kv", buffers=buffers, tgt=tgt, src=src)
    copy_all_layer_kv_cache_cpu(
        torch.tensor([b.data_ptr() for b in buffers]), torch.tensor([b[0].nbytes for b in buffers]), tgt, src
    )
    for mine, theirs in zip(buffers, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_nothing_to_move():
    buffers = _buffers()
    before = [b.clone() for b in buffers]
    none = torch.empty(0, dtype=torch.int64)
    copy_all_layer_kv_cache_cpu(
        torch.tensor([b.data_ptr() for b in buffers]), torch.tensor([b[0].nbytes for b in buffers]), none, none
    )
    assert all(torch.equal(a, b) for a, b in zip(before, buffers, strict=True))

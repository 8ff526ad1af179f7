# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from sgl_kernel import fill_accept_out_cache_loc_cpu, fill_bonus_tokens_cpu, rotate_input_ids_cpu


@pytest.mark.parametrize("stride,lens", [(1, [1]), (5, [1, 5, 3]), (8, [8])])
def test_bonus_tokens(oracle, stride, lens):
    tokens = torch.arange(len(lens) * stride, dtype=torch.int32) * 3
    lens, out = torch.tensor(lens, dtype=torch.int32), torch.full((len(lens),), -7, dtype=torch.int32)
    expected = oracle("bonus_tokens", accept_tokens=tokens, accept_lens=lens, out=out, stride=stride)
    fill_bonus_tokens_cpu(tokens, lens, out, stride)
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    "accept_index",
    [[[-1]], [[0]], [[0, 2, -1], [4, -1, -1], [6, 7, 8]], [[-1, -1], [3, -1]], [[0, 1, 2, 3, 4, 5, 6, 7]]],
)
def test_accept_out_cache_loc(oracle, accept_index):
    index = torch.tensor(accept_index, dtype=torch.int32)
    slots, out = torch.arange(9) + 100, torch.full((index.numel(),), -7)
    expected = oracle("accept_out_cache_loc", accept_index=index, out_cache_loc=slots, out=out)
    fill_accept_out_cache_loc_cpu(index, slots, out)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("lens", [[1], [4, 1, 0, 3], [0], [30, 2]])
@pytest.mark.parametrize("selects", [False, True])
def test_rotate_input_ids(oracle, lens, selects):
    lens = torch.tensor(lens)
    start = lens.cumsum(0) - lens
    ids, new = torch.arange(int(lens.sum())) + 10, torch.arange(len(lens)) + 900
    select = torch.where(lens > 0, start + lens // 2, 0) if selects else None
    expected = oracle("rotate", input_ids=ids, start=start, lens=lens, next_tokens=new, select=select)
    rotate_input_ids_cpu(ids, start, lens, new, select)
    assert torch.equal(ids, expected)


def test_no_requests():
    none, out = torch.empty(0, dtype=torch.int64), torch.full((2,), -7)
    fill_bonus_tokens_cpu(none, none, out, 4)
    fill_accept_out_cache_loc_cpu(none, none, out)
    rotate_input_ids_cpu(none, none, none, none)
    assert out.tolist() == [-7, -7]

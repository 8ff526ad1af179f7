# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from sgl_kernel import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
)

ROWS, WIDTH = 7, 97
# Empty ranges at either end and in the middle, one token, several blocks of the Triton kernel, the last column.
RANGES = [([5], [5]), ([3], [4]), ([0, 9, 96, 40], [65, 9, 97, 43]), ([2, 2, 2], [2, 2, 35]), ([97], [97])]


def _table() -> torch.Tensor:
    return torch.randint(1, 10_000, (ROWS, WIDTH), generator=torch.Generator().manual_seed(1), dtype=torch.int32)


def _requests(count: int) -> torch.Tensor:
    return torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))[:count]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("start,end", RANGES)
def test_extend_cache_locs(oracle, start, end, dtype):
    start, end, table, requests = torch.tensor(start), torch.tensor(end), _table(), _requests(len(start))
    out = torch.full((int((end - start).sum()) + 3,), -7, dtype=dtype)
    expected = oracle("extend_cache_locs", req_pool_indices=requests, req_to_token=table, start=start, end=end, out=out)
    assign_extend_cache_locs_cpu(requests, table, start, end, out, WIDTH)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("start,end", RANGES)
def test_req_to_token_pool(oracle, start, end):
    start, end, table, requests = torch.tensor(start), torch.tensor(end), _table(), _requests(len(start))
    slots = torch.arange(20_000, 20_000 + int((end - start).sum()))
    expected = oracle(
        "req_to_token_pool", req_pool_indices=requests, req_to_token=table, start=start, end=end, slots=slots
    )
    assign_req_to_token_pool_cpu(requests, table, start, end, slots, WIDTH)
    assert torch.equal(table, expected)


def test_range_behind_the_row_does_not_reach_the_next_request():
    table = _table()
    before = table.clone()
    with pytest.raises(IndexError):
        assign_req_to_token_pool_cpu(
            torch.tensor([0]), table, torch.tensor([95]), torch.tensor([99]), torch.arange(4), WIDTH
        )
    assert torch.equal(table[1], before[1])


@pytest.mark.parametrize("topk,steps", [(1, 1), (1, 5), (4, 3)])
@pytest.mark.parametrize("seq_lens", [[0], [3, 0, 80]])
def test_draft_cache_locs(oracle, seq_lens, topk, steps):
    seq_lens, table, requests = torch.tensor(seq_lens), _table(), _requests(len(seq_lens))
    out = torch.full((len(seq_lens) * topk * steps,), -7)
    expected = oracle(
        "draft_cache_locs",
        req_pool_indices=requests,
        req_to_token=table,
        seq_lens=seq_lens,
        out=out,
        topk=topk,
        steps=steps,
    )
    assign_draft_cache_locs_contiguous_cpu(requests, table, seq_lens, out, WIDTH, topk, steps)
    assert torch.equal(out, expected)


def test_no_requests():
    none, out, table = torch.empty(0, dtype=torch.int64), torch.full((2,), -7), _table()
    before = table.clone()
    assign_extend_cache_locs_cpu(none, table, none, none, out, WIDTH)
    assign_draft_cache_locs_contiguous_cpu(none, table, none, out, WIDTH, 2, 3)
    assign_req_to_token_pool_cpu(none, table, none, none, none, WIDTH)
    assert out.tolist() == [-7, -7]
    assert torch.equal(table, before)

# SPDX-License-Identifier: Apache-2.0
"""Attention of a tree of draft nodes, of a drafter's block, or of one token, over a paged cache of keys and values.

The contract is stated here and nowhere else. B requests, N nodes a request, Hq query heads and Hkv KV heads of this rank
(Hq / Hkv of them share a KV head: GQA, or MHA at 1), heads of D dimensions.

| argument | shape | dtype | note |
|---|---|---|---|
| out | [B*N, Hq, D] | that of q | written whole; strides free as for q |
| lse | [B*N, Hq] or None | float32 | natural log of the sum of exp(scores); contiguous |
| q | [B*N, Hq, D] | bfloat16 (CPU: also float32) | strides free |
| k_pool, v_pool | [slots, Hkv, D] | that of q, or float8_e4m3fn | strides free; a slot below 2^31 bytes |
| page_table | [B, max_pages] | int32 | token j of request b is row page_table[b, j // page_size] * page_size + j % page_size |
| prefix_lens | [B] | int32 | committed tokens before the window; 0 is legal; negative marks a padded request |
| mask_words | [B, N, ceil(N/32)] or None | int32 or uint32 | bit j % 32 of word j // 32 of row i: node i sees node j |
| workspace | bytes, contiguous | any | from `gqa_tree_verify_workspace`; the CPU twin takes None |

Node i of request b is token prefix_lens[b] + i, and its rows are already in the pools. Every node sees the whole prefix; of
the window it sees what its mask row says, and without mask_words all of it, which is what a drafter's block wants. With
`window` >= 0 a node sees only keys whose position is at least its own less `window`. Prefix token j has position j, a node
prefix_lens + its depth: how many nodes it sees besides itself, so that siblings count as one step; without mask_words its
index. `logit_cap` > 0 makes a score s into cap * tanh(s / cap) after the scale. An fp8 pool holds keys divided by k_scale and
values divided by v_scale.

A row that sees no key, and every row of a padded request, gives zeros and a log-sum-exp of -inf, never NaN. All rows of the
tokens that a request's root sees, and of its nodes, must hold finite numbers, hidden nodes too; no other row of the pools is
read, nor any page-table entry past the last token's.

1 <= N <= 257, D is 64, 128 or 256, Hq / Hkv is 1 to 16, page_size a power of two up to 64, sm_scale positive. Last dimensions
are contiguous; bases and strides of q, k_pool, v_pool and out are multiples of 16 bytes. Decode is N = 1.

Lengths and masks are read on the device, so one captured CUDA graph replays with any lengths, trees and padded rows.
The operator allocates nothing and does not synchronise. The same inputs give the same bits. The CUDA kernel takes the row sum
of probabilities as rounded to 16 bits, so its log-sum-exp is good to 2^-8; it saturates values beyond 65504 where a row's work
is split, and with an fp8 pool also queries beyond that; and it is one cooperative launch, so it waits until the whole card
is free to hold it. Calls that share a workspace must run on one stream, one after the other. Accumulation is float32.

Errors: ValueError naming the argument, for shapes, dtypes, devices, strides and alignment.
"""

from __future__ import annotations

import torch

from sgl_kernel_ddtree import _load

HEAD_DIMS = (64, 128, 256)
MAX_NODES = 257
MAX_HEADS = 256
MAX_GROUP = 16


def _stored(pool: torch.Tensor) -> torch.Tensor:
    # The binding takes e4m3 as bytes: DLPack has the type only since 1.1.
    return pool.view(torch.uint8) if pool.dtype == torch.float8_e4m3fn else pool


def gqa_tree_verify(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor | None,
    workspace: torch.Tensor | None,
    num_nodes: int,
    page_size: int,
    sm_scale: float,
    window: int = -1,
    logit_cap: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Writes `out` and, if given, `lse`; see the module's docstring for the contract.

    Runs the CUDA kernel for CUDA tensors and its C++ twin for CPU tensors, decided by `q.device` alone. The checks are made
    by the C++ binding, before anything is launched.
    """
    _load.load(q.device).gqa_tree_verify(
        out,
        lse,
        q,
        _stored(k_pool),
        _stored(v_pool),
        page_table,
        prefix_lens,
        mask_words,
        workspace,
        num_nodes,
        page_size,
        sm_scale,
        window,
        logit_cap,
        k_scale,
        v_scale,
    )


def gqa_tree_verify_workspace_bytes(
    device: torch.device, *, max_num_nodes: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> int:
    """Bytes of workspace for any call of at most this many nodes on `device`; 0 on the CPU.

    The formula is `gqa_tree_verify_cuda_workspace_bytes` in csrc/gqa_tree_verify; it depends on the card's SM count, and
    neither on the batch nor on the context length.
    """
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return _load.load(device).gqa_tree_verify_workspace_bytes(max_num_nodes, num_heads, num_kv_heads, head_dim, num_sms)


def gqa_tree_verify_workspace(
    device: torch.device | str, *, max_num_nodes: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> torch.Tensor:
    """A zeroed uint8 workspace for any call of at most this size. Allocate it once, before a graph is captured.

    It must start as zeros; the kernel leaves it fit for the next call. Layers of other head counts may share it if it is
    large enough for each.
    """
    device = torch.device(device)
    size = gqa_tree_verify_workspace_bytes(
        device, max_num_nodes=max_num_nodes, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim
    )
    return torch.zeros(size, dtype=torch.uint8, device=device)

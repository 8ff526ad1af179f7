# SPDX-License-Identifier: Apache-2.0
"""Attention of a tree of draft nodes over a paged MLA cache (absorbed form): the operator of verify and of decode.

The contract is stated here and nowhere else. B requests, N nodes a request, H heads of this rank, latent 512, rope 64.

| argument | shape | dtype | note |
|---|---|---|---|
| out | [B*N, H, 512] | that of q | written whole; strides free as for q |
| lse | [B*N, H] or None | float32 | natural log of the sum of exp(scaled scores); contiguous |
| q_nope, q_rope | [B*N, H, 512], [B*N, H, 64] | bfloat16 (CPU: also float32) | strides free; a joint q is two views |
| kv_pool | [slots, 576] or [slots, 1, 576] | that of q | the first 512 columns are the value; row stride may exceed 576 |
| page_table | [B, max_pages] | int32 | token j of request b is row page_table[b, j // page_size] * page_size + j % page_size |
| prefix_lens | [B] | int32 | committed tokens before the window; 0 is legal; negative marks a padded request |
| mask_words | [B, N, ceil(N/32)] | int32 or uint32 | bit j % 32 of word j // 32 of row i: node i sees node j |
| workspace | bytes, contiguous | any | from `mla_tree_verify_workspace`; the CPU twin takes None |

Node i of request b is token prefix_lens[b] + i, and its row is already in the pool. Every node sees the whole prefix; of
the window it sees what its mask row says (itself only if its bit is set). A row that sees no key, and every row of a padded
request, gives zeros and a log-sum-exp of -inf, never NaN. All rows of a request's window must hold finite numbers, hidden
ones too; no other row of the pool is read, nor any page-table entry past the last token's.

1 <= N <= 257, 1 <= H <= 128, page_size a power of two up to 64. Last dimensions are contiguous; bases and strides of q, kv
and out are multiples of 16 bytes. Decode is N = 1 with mask word 1.

Lengths and masks are read on the device, so one captured CUDA graph replays with any lengths, trees and padded rows. The
operator allocates nothing and does not synchronise. The same inputs give the same bits. The CUDA kernel takes the row sum of
probabilities as rounded to bf16, so its log-sum-exp is good to 2^-8; it saturates latents beyond 65504 where a row's work is
split; and it is one cooperative launch, so it waits until the whole card is free to hold it. Calls that share a workspace must
run on one stream, one after the other. Accumulation is float32.

Errors: ValueError naming the argument, for shapes, dtypes, devices, strides and alignment.
"""

from __future__ import annotations

import torch

from sgl_kernel_ddtree import _load

LATENT_DIM = 512
ROPE_DIM = 64
HEAD_DIM = LATENT_DIM + ROPE_DIM
MAX_NODES = 257
MAX_HEADS = 128


def mla_tree_verify(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    kv_pool: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    workspace: torch.Tensor | None,
    num_nodes: int,
    page_size: int,
    sm_scale: float,
) -> None:
    """Writes `out` and, if given, `lse`; see the module's docstring for the contract.

    Runs the CUDA kernel for CUDA tensors and its C++ twin for CPU tensors, decided by `q_nope.device` alone. The checks
    are made by the C++ binding, before anything is launched.
    """
    _load.load(q_nope.device).mla_tree_verify(
        out,
        lse,
        q_nope,
        q_rope,
        kv_pool,
        page_table,
        prefix_lens,
        mask_words,
        workspace,
        num_nodes,
        page_size,
        sm_scale,
    )


def mla_tree_verify_workspace_bytes(device: torch.device, *, max_batch: int, max_num_nodes: int, num_heads: int) -> int:
    """Bytes of workspace for any call of at most this size on `device`; 0 on the CPU.

    The formula is `mla_tree_verify_cuda_workspace_bytes` in csrc/mla_tree_verify; it depends on the card's SM count and
    not on the context length.
    """
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return _load.load(device).mla_tree_verify_workspace_bytes(max_batch, max_num_nodes, num_heads, num_sms)


def mla_tree_verify_workspace(
    device: torch.device | str, *, max_batch: int, max_num_nodes: int, num_heads: int
) -> torch.Tensor:
    """A zeroed uint8 workspace for any call of at most this size. Allocate it once, before a graph is captured.

    It must start as zeros; the kernel leaves it fit for the next call.
    """
    device = torch.device(device)
    size = mla_tree_verify_workspace_bytes(
        device, max_batch=max_batch, max_num_nodes=max_num_nodes, num_heads=num_heads
    )
    return torch.zeros(size, dtype=torch.uint8, device=device)

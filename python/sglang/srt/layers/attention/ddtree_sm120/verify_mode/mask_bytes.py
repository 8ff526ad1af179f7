# SPDX-License-Identifier: Apache-2.0
"""Mask words as the bytes that SGLang's Triton kernel reads.

That kernel takes one byte a (node, key) pair, ``N`` rows of ``L + N`` a request. It skips the ``L`` bytes of the
prefix, which every node sees, so only the last ``N`` of a row are written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def write_mask_bytes(
    out: torch.Tensor,
    row_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
) -> None:
    """One launch.

    Args:
        out: flat uint8.
        row_starts: ``[>= B]`` int64, where each request's rows begin in ``out``.
        seq_lens: ``[B]`` integer, ``L`` of each request as its rows are laid out, padded requests too.
        prefix_lens: ``[B]`` int32; a negative one marks a padded request, which gets a chain.
        mask_words: ``[B, N, ceil(N / 32)]`` int32; bit ``j % 32`` of word ``j // 32``: the node sees node ``j``.
    """
    batch, num_nodes, words = mask_words.shape
    if batch == 0:
        return
    _write_mask_bytes_kernel[(batch, num_nodes)](
        out,
        row_starts,
        seq_lens,
        prefix_lens,
        mask_words,
        NUM_NODES=num_nodes,
        WORDS=words,
        COLUMNS=triton.next_power_of_2(num_nodes),
    )


@triton.jit
def _write_mask_bytes_kernel(
    out,
    row_starts,
    seq_lens,
    prefix_lens,
    mask_words,
    NUM_NODES: tl.constexpr,
    WORDS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program (b, i): the row of node i of request b."""
    request = tl.program_id(0).to(tl.int64)
    node = tl.program_id(1)
    length = tl.load(seq_lens + request).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < NUM_NODES
    word = tl.load(mask_words + (request * NUM_NODES + node) * WORDS + column // 32, mask=inside, other=0)
    sees = ((word >> (column % 32)) & 1) != 0
    if tl.load(prefix_lens + request) < 0:
        sees = column <= node
    row = tl.load(row_starts + request) + node * (length + NUM_NODES) + length
    tl.store(out + row + column, sees.to(tl.uint8), mask=inside)

# SPDX-License-Identifier: Apache-2.0
"""What the CUDA kernels read of a step, prepared by one launch.

Page numbers, lengths and mask words are copied out of the scheduler's tables, so that nothing of theirs is read once
the launch is done: the scheduler may rewrite a row while the layers still run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
import triton
import triton.language as tl

WORD_BITS = 32
_PAGES_PER_PROGRAM = 1024
_WORDS_PER_PROGRAM = 64
# Enough to fill a card twice over; a program without work ends at once.
_PROGRAMS = 2048


class MaskLayout(IntEnum):
    """How a batch's tree masks lie in memory; ``N`` nodes a request, ``L`` committed tokens of its own."""

    CHAIN = 0  # no mask: node i sees nodes 0..i
    WORDS = 1  # [B, N, ceil(N / 32)] 32-bit words, bit j % 32 of word j // 32
    QLEN_ONLY = 2  # [B, N, N] bytes
    FULL_MASK = 3  # one request after the other, N rows of L + N bytes


def words_per_row(num_nodes: int) -> int:
    return -(-num_nodes // WORD_BITS)


@dataclass(frozen=True)
class StepMetadata:
    """One step of ``B`` requests, padded ones included, with ``N`` nodes each.

    Attributes:
        num_nodes: ``N``; 1 for decode.
        page_table: ``[B, max_pages]`` int32; entries behind a request's last page are undefined.
        prefix_lens: ``[B]`` int32, tokens before the window; negative for a padded request.
        mask_words: ``[B, N, ceil(N / 32)]`` int32; undefined for a padded request.
        has_tree: whether a mask was given; without one the words say a chain.
    """

    num_nodes: int
    page_table: torch.Tensor
    prefix_lens: torch.Tensor
    mask_words: torch.Tensor
    has_tree: bool = False


class StepBuffers:
    """Static storage of the metadata of steps of at most ``max_batch`` requests.

    Its size does not depend on the layout of masks, nor the masks' part on the context length.

    Args:
        max_batch: most requests, padded ones included.
        max_nodes: most nodes of a request.
        max_pages: most pages of a request.
        device: of all buffers.
    """

    def __init__(self, max_batch: int, max_nodes: int, max_pages: int, device: torch.device | str):
        self._max_batch, self._max_nodes = max_batch, max_nodes
        self._page_table = torch.zeros(max_batch, max_pages, dtype=torch.int32, device=device)
        self._prefix_lens = torch.full((max_batch,), -1, dtype=torch.int32, device=device)
        self._words = torch.zeros(max_batch * max_nodes * words_per_row(max_nodes), dtype=torch.int32, device=device)

    def holds(self, batch: int, num_nodes: int) -> bool:
        return batch <= self._max_batch and num_nodes <= self._max_nodes

    def step(self, batch: int, num_nodes: int, has_tree: bool = False) -> StepMetadata:
        """Views for ``batch`` requests of ``num_nodes``; the same arguments give the same addresses."""
        words = words_per_row(num_nodes)
        return StepMetadata(
            num_nodes=num_nodes,
            page_table=self._page_table[:batch],
            prefix_lens=self._prefix_lens[:batch],
            mask_words=self._words[: batch * num_nodes * words].view(batch, num_nodes, words),
            has_tree=has_tree,
        )

    @property
    def num_bytes(self) -> int:
        return 4 * (self._page_table.numel() + self._prefix_lens.numel() + self._words.numel())


def write_step_metadata(
    step: StepMetadata,
    *,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    lens_count_window: bool,
    page_size: int,
    layout: MaskLayout = MaskLayout.CHAIN,
    mask: torch.Tensor | None = None,
    num_requests: int | None = None,
) -> None:
    """Fill ``step`` by one launch that does not wait for the device.

    Every node sees itself, whatever the mask says. Cells of a byte mask that lie behind its end count as unseen.

    Args:
        req_to_token: ``[R, W]`` int32, KV slot of each token of each request.
        req_pool_indices: ``[B]`` integer, rows of it.
        seq_lens: ``[B]`` integer, tokens of each request.
        lens_count_window: whether they count the window's tokens (decode) or not (verify).
        page_size: tokens a page; a page's slots are consecutive and start at a multiple of it.
        layout: of ``mask``.
        mask: contiguous; None for a chain.
        num_requests: the first so many are real; all when None.
    """
    batch, max_pages = step.page_table.shape
    if batch == 0:
        return
    if layout != MaskLayout.CHAIN:
        mask = mask.view(torch.int32 if layout == MaskLayout.WORDS else torch.uint8)
    parts = min(triton.cdiv(max_pages, _PAGES_PER_PROGRAM), triton.cdiv(_PROGRAMS, batch))
    _step_metadata_kernel[(batch, parts)](
        req_to_token,
        req_pool_indices,
        seq_lens,
        step.prefix_lens if mask is None else mask,
        step.page_table,
        step.prefix_lens,
        step.mask_words,
        req_to_token.stride(0),
        step.page_table.stride(0),
        0 if mask is None else mask.numel(),
        batch if num_requests is None else num_requests,
        WINDOW_IN_LENS=step.num_nodes if lens_count_window else 0,
        NUM_NODES=step.num_nodes,
        WORDS=words_per_row(step.num_nodes),
        PAGE_SIZE=page_size,
        LAYOUT=int(layout),
        PAGES=_PAGES_PER_PROGRAM,
        CELLS=_WORDS_PER_PROGRAM,
    )


# A batch of another size must not compile the kernel again in the middle of serving.
@triton.jit(do_not_specialize=["mask_cells", "num_requests"])
def _step_metadata_kernel(
    req_to_token,
    req_pool_indices,
    seq_lens,
    mask,
    page_table,
    prefix_lens,
    mask_words,
    token_stride,
    page_stride,
    mask_cells,
    num_requests,
    WINDOW_IN_LENS: tl.constexpr,
    NUM_NODES: tl.constexpr,
    WORDS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    LAYOUT: tl.constexpr,
    PAGES: tl.constexpr,
    CELLS: tl.constexpr,
):
    """Program (b, p) of (B, P): parts p, p + P, ... of the pages and of the mask words of request b."""
    request = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    if request >= num_requests:
        if part == 0:
            tl.store(prefix_lens + request, -1)
        return
    prefix = tl.load(seq_lens + request).to(tl.int32) - WINDOW_IN_LENS
    if part == 0:
        tl.store(prefix_lens + request, prefix)
    if prefix < 0:
        return

    num_pages = tl.cdiv(prefix + NUM_NODES, PAGE_SIZE)
    tokens = req_to_token + tl.load(req_pool_indices + request).to(tl.int64) * token_stride
    pages = page_table + request * page_stride
    lane = tl.arange(0, PAGES)
    whole = num_pages // PAGES
    # Without a mask, loads and stores are 16 bytes wide.
    for block in range(part, whole, parts):
        page = block * PAGES + lane
        tl.store(pages + page, tl.load(tokens + page * PAGE_SIZE) // PAGE_SIZE)
    if part == whole % parts:
        page = whole * PAGES + lane
        inside = page < num_pages
        tl.store(pages + page, tl.load(tokens + page * PAGE_SIZE, mask=inside, other=0) // PAGE_SIZE, mask=inside)

    start = request * (NUM_NODES * NUM_NODES)
    stride = NUM_NODES
    if LAYOUT == 3:
        # Requests before this one, each as long as its own context.
        before = tl.zeros((CELLS,), dtype=tl.int64)
        for first in range(0, request, CELLS):
            other = first + tl.arange(0, CELLS)
            lens = tl.load(seq_lens + other, mask=other < request, other=0).to(tl.int64) - WINDOW_IN_LENS
            before += tl.where(other < request, (lens + NUM_NODES) * NUM_NODES, 0)
        start = tl.sum(before) + prefix
        stride = prefix + NUM_NODES

    for first in range(part * CELLS, NUM_NODES * WORDS, parts * CELLS):
        cell = first + tl.arange(0, CELLS)
        inside = cell < NUM_NODES * WORDS
        node = cell // WORDS
        word = cell % WORDS
        if LAYOUT == 0:
            seen = tl.minimum(tl.maximum(node + 1 - word * 32, 0), 32)
            bits = tl.where(seen == 32, -1, (1 << (seen % 32)) - 1)
        elif LAYOUT == 1:
            bits = tl.load(mask + request * (NUM_NODES * WORDS) + cell, mask=inside, other=0)
        else:
            bit = tl.arange(0, 32)
            column = word[:, None] * 32 + bit[None, :]
            offset = start + node.to(tl.int64)[:, None] * stride + column
            readable = inside[:, None] & (column < NUM_NODES) & (offset < mask_cells)
            sees = tl.load(mask + offset, mask=readable, other=0) != 0
            bits = tl.sum(tl.where(sees, 1 << bit[None, :], 0), axis=1)
        bits = tl.where(node // 32 == word, bits | (1 << (node % 32)), bits)
        tl.store(mask_words + request * (NUM_NODES * WORDS) + cell, bits, mask=inside)

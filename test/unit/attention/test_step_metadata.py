# SPDX-License-Identifier: Apache-2.0
"""The one launch that prepares a step on a GPU, in Triton's interpreter, against plain Python."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from interpreted import MARKER
from scene import byte_mask, mask_words, random_tree
from sglang.srt.layers.attention.ddtree_sm120.step_metadata import MaskLayout

MAX_BATCH, MAX_NODES, WIDTH = 7, 70, 2600


@pytest.fixture
def run(interpreter):
    return partial(interpreter, "step_metadata")


class Step:
    """Requests with random pages; rows of the table that no request has hold a marker."""

    def __init__(self, prefix: list[int], num_nodes: int, page_size: int, seed: int = 0):
        rng = random.Random(seed)
        self.prefix, self.num_nodes, self.page_size = prefix, num_nodes, page_size
        self.max_pages = -(-WIDTH // page_size)
        self.table = torch.full((MAX_BATCH + 3, WIDTH), MARKER, dtype=torch.int32)
        self.rows = rng.sample(range(1, MAX_BATCH + 3), len(prefix))
        # The largest page numbers that a slot of 31 bits can have.
        self.pages = [
            [rng.randrange(0, 2**31 // page_size) for _ in range(-(-(p + num_nodes) // page_size))] for p in prefix
        ]
        for row, length, pages in zip(self.rows, prefix, self.pages, strict=True):
            position = torch.arange(length + num_nodes)
            slots = torch.tensor(pages, dtype=torch.int64)[position // page_size] * page_size + position % page_size
            self.table[row, : length + num_nodes] = slots.to(torch.int32)

    def arguments(self, **more) -> dict:
        return {
            "max_batch": MAX_BATCH,
            "max_nodes": MAX_NODES,
            "max_pages": self.max_pages,
            "batch": len(self.prefix),
            "num_nodes": self.num_nodes,
            "req_to_token": self.table,
            "req_pool_indices": torch.tensor(self.rows),
            "seq_lens": torch.tensor(self.prefix),
            "lens_count_window": False,
            "page_size": self.page_size,
            **more,
        }

    def check_tables(self, out: dict, real: int | None = None) -> None:
        """Exactly the pages and lengths of the real requests are written, and nothing else."""
        real = len(self.prefix) if real is None else real
        pages = torch.full((MAX_BATCH, self.max_pages), MARKER, dtype=torch.int32)
        lens = torch.full((MAX_BATCH,), MARKER, dtype=torch.int32)
        lens[: len(self.prefix)] = -1
        for request in range(real):
            pages[request, : len(self.pages[request])] = torch.tensor(self.pages[request], dtype=torch.int32)
            lens[request] = self.prefix[request]
        assert torch.equal(out["page_table"], pages)
        assert torch.equal(out["prefix_lens"], lens)


@pytest.mark.parametrize("num_nodes,page_size", [(1, 1), (31, 16), (33, 64), (70, 1)])
def test_chain(run, num_nodes, page_size):
    step = Step([0, 1, 1023, 2500, 64], num_nodes, page_size)
    out = run(**step.arguments())
    step.check_tables(out)
    chain = [node - 1 for node in range(num_nodes)]
    expected = mask_words([chain] * 5)
    assert torch.equal(out["mask_words"], expected)
    assert (out["words"][expected.numel() :] == MARKER).all()


@pytest.mark.parametrize("layout", [MaskLayout.WORDS, MaskLayout.QLEN_ONLY, MaskLayout.FULL_MASK])
@pytest.mark.parametrize("num_nodes", [1, 32, 45])
def test_trees(run, layout, num_nodes):
    rng = random.Random(num_nodes)
    step = Step([7, 0, 130, 1, 64, 99], num_nodes, 16)
    trees = [random_tree(rng, num_nodes) for _ in step.prefix]
    if layout == MaskLayout.WORDS:
        mask = mask_words(trees)
    else:
        mask = byte_mask(trees, step.prefix if layout == MaskLayout.FULL_MASK else None)
    out = run(**step.arguments(layout=layout, mask=mask))
    step.check_tables(out)
    assert torch.equal(out["mask_words"], mask_words(trees))


@pytest.mark.parametrize("layout", list(MaskLayout))
def test_padded_requests(run, layout):
    """The mask covers the real requests only; the padded ones' lengths and rows are a graph's fill values."""
    rng = random.Random(3)
    step = Step([7, 40, 1, 1], 9, 1)
    trees = [random_tree(rng, 9) for _ in range(2)]
    mask = {
        MaskLayout.CHAIN: None,
        MaskLayout.WORDS: mask_words(trees),
        MaskLayout.QLEN_ONLY: byte_mask(trees, None),
        MaskLayout.FULL_MASK: byte_mask(trees, step.prefix[:2]),
    }[layout]
    out = run(**step.arguments(layout=layout, mask=mask, num_requests=2))
    step.check_tables(out, real=2)
    chain = [node - 1 for node in range(9)]
    expected = mask_words([chain] * 2 if mask is None else trees)
    assert torch.equal(out["mask_words"][:2], expected)


def test_decode_lengths_count_the_new_token(run):
    step = Step([0, 5, 2048], 1, 16)
    out = run(**step.arguments(seq_lens=torch.tensor(step.prefix) + 1, lens_count_window=True))
    step.check_tables(out)
    assert out["mask_words"].flatten().tolist() == [1, 1, 1]


def test_length_zero_in_decode_is_a_padded_request(run):
    step = Step([4, 3], 1, 1)
    out = run(**step.arguments(seq_lens=torch.tensor([5, 0]), lens_count_window=True))
    step.check_tables(out, real=1)


def test_int32_lengths_and_rows(run):
    step = Step([11, 300], 6, 16)
    arguments = step.arguments()
    out = run(**arguments | {name: arguments[name].int() for name in ("seq_lens", "req_pool_indices")})
    step.check_tables(out)


def test_mask_that_is_too_short_leaves_the_node_itself(run):
    """Nothing behind the mask's end is read, and no node is blind."""
    step = Step([3, 3], 4, 1)
    out = run(**step.arguments(layout=MaskLayout.QLEN_ONLY, mask=torch.ones(4, dtype=torch.bool)))
    assert out["mask_words"].flatten().tolist() == [15, 2, 4, 8, 1, 2, 4, 8]

# SPDX-License-Identifier: Apache-2.0
"""SGLang's Triton backend as the delegate: trees, padding and bounded buffers, in Triton's interpreter."""

from __future__ import annotations

import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor

import delegate_interpreted
import pytest
import torch
from delegate_interpreted import CONTEXT
from scene import mask_words, random_tree

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def run():
    with ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=delegate_interpreted.start
    ) as pool:
        yield lambda name, *arguments: pool.submit(getattr(delegate_interpreted, name), *arguments).result(300)


def _batch(prefix: list[int], num_nodes: int, seed: int):
    rng = random.Random(seed)
    trees = [random_tree(rng, num_nodes) for _ in prefix]
    return prefix, trees, mask_words(trees)


@pytest.mark.parametrize("stored", [False, True], ids=["given", "stored"])
def test_eager_trees(run, stored):
    prefix, trees, words = _batch([0, 17, 40], 9, seed=1)
    out, expected = run("eager", prefix, 9, trees, words, 1, stored)
    torch.testing.assert_close(out.double(), expected, **TOLERANCE)


def test_eager_chain_and_decode(run):
    for prefix, num_nodes in (([5, 0], 5), ([0, 33], 1)):
        out, expected = run("eager", prefix, num_nodes, None, None, 2, False)
        torch.testing.assert_close(out.double(), expected, **TOLERANCE)


def test_replays_take_other_trees_lengths_and_padding(run):
    size, num_nodes = 3, 9
    batches = [_batch([20, 3, 41], num_nodes, 1), _batch([2], num_nodes, 2), ([30, 1], None, None)]
    results, sizes = run("replays", size, num_nodes, batches, 5)
    for out, expected in results:
        torch.testing.assert_close(out.double(), expected, **TOLERANCE)
    # A context of indices a request, not one a node, and no scratch of a decode.
    assert sizes["kv_indices"] == (size * CONTEXT,) and sizes["attn_logits"][0] == 1


def test_replays_of_decode(run):
    results, sizes = run("replays", 3, 1, [([20, 3, 41], None, None), ([0, 7], None, None)], 5)
    for out, expected in results:
        torch.testing.assert_close(out.double(), expected, **TOLERANCE)
    assert sizes["kv_indices"] == (3 * CONTEXT,) and sizes["attn_logits"][0] == 3

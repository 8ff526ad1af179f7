# SPDX-License-Identifier: Apache-2.0
"""The benchmark of accept lengths: walks, intervals, its check of the servers."""

from __future__ import annotations

import pytest
import torch
from sglang.kernels.ops.ddtree.tree_build import DraftTree, tree_build

from benchmark.accept import intervals
from benchmark.accept.__main__ import check
from benchmark.accept.replay import Walks


def test_a_walk_follows_the_text_down_the_tree():
    """Two positions of candidates 10, 11 and 20, 21; every path of them is in the tree."""
    trees = DraftTree.empty(1, 7, "cpu")
    candidates = torch.tensor([[[10, 11], [20, 21]]])
    logprobs = torch.tensor([[[0.6, 0.3], [0.6, 0.3]]]).log()
    tree_build(candidates, logprobs, torch.tensor([5]), torch.tensor([0]), trees)
    walks = Walks(trees)
    for text, depth in (([10, 20], 2), ([11, 21], 2), ([11, 9], 1), ([9, 20], 0), ([10], 1), ([], 0), ([20], 0)):
        assert walks.depth(0, text) == depth, text


def test_intervals():
    steps = [[1, 1, 1], [3], [2, 2]]
    mean, low, high = intervals.accept_length(steps)
    assert mean == (10 + 6) / 6
    assert 2 <= low < mean < high <= 4
    assert intervals.accept_length([[2, 2]] * 5) == (3, 3, 3)
    # Paired: a constant lead has no spread, however much the prompts differ.
    ahead = [[depth + 1 for depth in each] for each in steps]
    assert intervals.difference(ahead, steps) == pytest.approx((1, 1, 1))


def test_a_server_may_only_have_further_steps_at_the_end():
    check([[3, 0]], [[3, 0, 1]], "a server")
    with pytest.raises(SystemExit, match="the replay"):
        check([[3, 0]], [[2, 0, 1]], "a server")
    with pytest.raises(SystemExit, match="the replay"):
        check([[3, 0]], [[3, 0, *[0] * 17]], "a server")

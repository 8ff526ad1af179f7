# SPDX-License-Identifier: Apache-2.0
"""What a step accepts along an output that is already known, for any tree.

Neither a chain nor a tree changes the output (greedy) or its law (sampled): a
node's choice by the target is, on the path taken, the next token of the output. So
one plain output and the drafter's logits at its positions tell the accept length
under every tree, and all trees are compared on the same text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sglang.kernels.ops.ddtree.tree_build import DraftTree, tree_build

from benchmark.tiny.decoding import draft_logits
from benchmark.tiny.drafter import Drafter
from benchmark.tiny.sizes import BLOCK
from benchmark.tiny.target import Target


@dataclass(frozen=True)
class Tree:
    """Settings of a tree; ``budget`` nodes besides the root, ``topk`` candidates a position."""

    budget: int
    topk: int
    spine: bool = True


CHAIN = Tree(budget=BLOCK - 1, topk=1)


class Replay:
    """One output, its prompt, and the drafter's log-probabilities at each of its positions."""

    def __init__(self, target: Target, drafter: Drafter, prompt: list[int], output: list[int]) -> None:
        self._ids = prompt + output
        self._prompt = len(prompt)
        # A step starts behind the prefill's token, and its whole block lies in the text.
        anchors = torch.arange(len(prompt), max(len(prompt), len(self._ids) - BLOCK + 1))
        logits = draft_logits(target, drafter, torch.tensor(self._ids), anchors)
        self._logprobs = logits.log_softmax(-1)

    def steps(self, tree: Tree) -> list[int]:
        """Accepted drafts of each step, for the steps whose whole block lies in the text."""
        logprobs, ids = self._logprobs.topk(tree.topk, -1)
        positions = len(logprobs)
        anchors = torch.arange(self._prompt, self._prompt + positions)
        trees = DraftTree.empty(positions, tree.budget + 1, "cpu")
        roots = torch.tensor(self._ids)[anchors]
        tree_build(ids, logprobs, roots, anchors, trees, spine=tree.spine)
        walks = Walks(trees)
        accepted, at = [], 0
        while at < positions:
            first = self._prompt + at + 1
            accepted.append(walks.depth(at, self._ids[first : first + BLOCK - 1]))
            at += accepted[-1] + 1
        return accepted


class Walks:
    """Walks down a batch of trees."""

    def __init__(self, trees: DraftTree) -> None:
        self._tokens = trees.tokens.tolist()
        self._child = trees.first_child.tolist()
        self._sibling = trees.next_sibling.tolist()

    def depth(self, tree: int, text: list[int]) -> int:
        """How many tokens of ``text`` follow each other down tree number ``tree``."""
        tokens, sibling = self._tokens[tree], self._sibling[tree]
        node, depth = 0, 0
        for token in text:
            child = self._child[tree][node]
            while child >= 0 and tokens[child] != token:
                child = sibling[child]
            if child < 0:
                break
            node, depth = child, depth + 1
        return depth

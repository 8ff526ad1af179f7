# SPDX-License-Identifier: Apache-2.0
"""Plain-Python trees: the heap of the paper and exhaustive search.

Independent of the code under test: one request, lists and ``heapq``, nodes
named by their path of candidate ranks.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import combinations
from math import isnan

import numpy as np

Path = tuple[int, ...]
NEG_INF = float("-inf")


@dataclass(frozen=True)
class ReferenceNode:
    path: Path
    parent: int
    score: np.float32


def usable(logprobs: np.ndarray) -> list[list[np.float32]]:
    """Candidate lists cut at the first -inf or NaN, values above 0 set to 0."""
    lists = []
    for row in logprobs.astype(np.float32):
        kept = []
        for value in row:
            if isnan(value) or value == NEG_INF:
                break
            kept.append(min(value, np.float32(0)))
        lists.append(kept)
    return lists


def heap_tree(logprobs: np.ndarray, budget: int, *, spine: bool) -> list[ReferenceNode]:
    """Best-first growth: pop the best, push its next sibling and first child."""
    lists = usable(logprobs)
    nodes = [ReferenceNode((), -1, np.float32(0))]
    heap: list[tuple[float, int, int, Path]] = []

    def push(parent: int, rank: int) -> None:
        base = nodes[parent]
        depth = len(base.path)
        if depth < len(lists) and rank < len(lists[depth]):
            score = np.float32(base.score + lists[depth][rank])
            heapq.heappush(heap, (-float(score), parent, rank, (*base.path, rank)))

    push(0, 0)
    chain: list[Path] = []
    for row in lists:
        if not row:
            break
        chain.append((0,) * (len(chain) + 1))
    if not spine or len(chain) > budget:
        chain = []

    while heap and len(nodes) <= budget:
        left = budget + 1 - len(nodes)
        present = {node.path for node in nodes}
        missing = [path for path in chain if path not in present]
        if missing and len(missing) == left:
            entry = next(item for item in heap if item[3] == missing[0])
            heap.remove(entry)
            heapq.heapify(heap)
        else:
            entry = heapq.heappop(heap)
        negative, parent, rank, path = entry
        nodes.append(ReferenceNode(path, parent, np.float32(-negative)))
        push(parent, rank + 1)
        push(len(nodes) - 1, 0)
    return nodes


def path_probability(path: Path, lists: list[list[np.float32]]) -> float:
    return float(
        np.exp(sum(float(lists[depth][rank]) for depth, rank in enumerate(path)))
    )


def best_total(logprobs: np.ndarray, budget: int, required: set[Path]) -> float:
    """Greatest total path probability over all closed sets of ``budget`` nodes
    that hold ``required``, by trying every set."""
    lists = usable(logprobs)
    paths: list[Path] = []
    level: list[Path] = [()]
    for row in lists:
        level = [(*path, rank) for path in level for rank in range(len(row))]
        paths += level
    best = 0.0
    size = min(budget, len(paths))
    for chosen in combinations(paths, size):
        kept = set(chosen)
        if required <= kept and all(p[:-1] in kept or len(p) == 1 for p in chosen):
            best = max(best, sum(path_probability(p, lists) for p in chosen))
    return best

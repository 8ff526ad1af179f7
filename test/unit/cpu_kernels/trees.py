# SPDX-License-Identifier: Apache-2.0
"""Random draft trees, as EAGLE's selection and as free parent lists."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import torch


@dataclass
class EagleSelection:
    """Input of ``build_tree_kernel_efficient_cpu`` for one batch, and the parents it stands for."""

    parent_list: torch.Tensor
    selected_index: torch.Tensor
    parents: list[list[int]]
    topk: int
    depth: int
    num_nodes: int


def random_eagle_selection(rng: random.Random, batch: int, topk: int, depth: int, num_nodes: int) -> EagleSelection:
    """Keep ``num_nodes - 1`` random candidates, closed under parents, of an EAGLE draft with ``depth`` steps."""
    parent_lists, selections, parents = [], [], []
    for _ in range(batch):
        # Candidate c hangs below expanded node c // topk; expanded node e > 0 is candidate expanded[e].
        expanded = [-1, *range(topk)]
        first = topk
        for _ in range(1, depth - 1):
            expanded += sorted(rng.sample(range(first, first + topk * topk), topk))
            first += topk * topk
        total = topk + (depth - 1) * topk * topk
        chosen: set[int] = set()
        while len(chosen) < num_nodes - 1:
            open_candidates = [
                c
                for c in range(total)
                if c not in chosen and c // topk < len(expanded) and (c // topk == 0 or expanded[c // topk] in chosen)
            ]
            if not open_candidates:
                raise ValueError("the draft is too small for that many nodes")
            chosen.add(rng.choice(open_candidates))
        ordered = sorted(chosen)
        parents.append([-1] + [0 if c // topk == 0 else ordered.index(expanded[c // topk]) + 1 for c in ordered])
        parent_lists.append(expanded)
        selections.append(ordered)
    return EagleSelection(
        torch.tensor(parent_lists),
        torch.tensor(selections).view(batch, num_nodes - 1),
        parents,
        topk,
        depth,
        num_nodes,
    )


def random_parents(rng: random.Random, num_nodes: int) -> list[int]:
    """A random recursive tree: each node hangs below any earlier one."""
    return [-1] + [rng.randrange(i) for i in range(1, num_nodes)]


def ancestors_and_self(parents: list[int], node: int) -> list[int]:
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path


def mask_of(parents: list[int]) -> torch.Tensor:
    """``[N, N]`` bool: row ``i`` marks node ``i`` and its ancestors."""
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node in range(len(parents)):
        mask[node, ancestors_and_self(parents, node)] = True
    return mask


def links_of(parents: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``retrieve_index``, ``retrieve_next_token``, ``retrieve_next_sibling``, each ``[B, N]`` int64."""
    batch, num_nodes = len(parents), len(parents[0])
    index = torch.arange(batch * num_nodes).view(batch, num_nodes)
    child = torch.full((batch, num_nodes), -1)
    sibling = torch.full((batch, num_nodes), -1)
    for b, tree in enumerate(parents):
        for node in range(num_nodes):
            children = [c for c in range(num_nodes) if tree[c] == node]
            if children:
                child[b, node] = children[0]
            for left, right in itertools.pairwise(children):
                sibling[b, left] = right
    return index, child, sibling

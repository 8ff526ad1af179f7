# SPDX-License-Identifier: Apache-2.0
"""The series in two processes: most of its time goes into parsing, and files are independent of one another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from fork.apply import Outcome, Tree, apply_series
from fork.patches import Patch


def apply_series_in_halves(upstream: Mapping[str, bytes], patches: list[Patch], version: str) -> Tree:
    """As ``apply_series``, but for ``originals``, which stay empty.

    With one processor, and wherever a patch fails, this is ``apply_series`` itself, which can say more.
    """
    halves = _halves(upstream, patches, version)
    if min(len(half) for half in halves) == 0 or len(os.sched_getaffinity(0)) < 2:
        return apply_series(upstream, patches, version)
    # A process that is forked shares the wheel's file and its place in it, so all is read before.
    texts = [_texts(upstream, half, version) for half in halves]
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        other = pool.submit(_apply, texts[1], halves[1], version)
        trees = [_apply(texts[0], halves[0], version), other.result()]
    if any(tree is None for tree in trees):
        return apply_series(upstream, patches, version)

    whole = Tree()
    outcomes: dict[str, Outcome] = {}
    for tree in trees:
        assert tree is not None
        whole.edited |= tree.edited
        whole.edited_by |= tree.edited_by
        outcomes |= {outcome.patch.name: outcome for outcome in tree.outcomes}
    whole.outcomes = [outcomes[patch.name] for patch in patches]
    return whole


def _apply(texts: Mapping[str, bytes], patches: list[Patch], version: str) -> Tree | None:
    """None where a patch failed."""
    tree = apply_series(texts, patches, version)
    tree.originals = {}  # large, and nobody asked
    return None if tree.errors else tree


def _files(patch: Patch, version: str) -> set[str]:
    return {edit.file for edit in patch.edits if edit.applies_to(version)}


def _texts(upstream: Mapping[str, bytes], patches: list[Patch], version: str) -> dict[str, bytes]:
    return {file: upstream[file] for patch in patches for file in _files(patch, version) if file in upstream}


def _halves(upstream: Mapping[str, bytes], patches: list[Patch], version: str) -> tuple[list[Patch], list[Patch]]:
    """Two parts of about as much text that edit no file in common, each in the order of the series. One is empty if a
    patch does not say which files it edits."""
    if any(patch.codemod for patch in patches):
        return patches, []
    # Groups of patches that hang together by their files.
    groups: list[tuple[set[str], set[str]]] = []
    for patch in patches:
        files, names = _files(patch, version), {patch.name}
        apart = []
        for group in groups:
            if files & group[0]:
                files, names = files | group[0], names | group[1]
            else:
                apart.append(group)
        groups = [*apart, (files, names)]

    def size(group: tuple[set[str], set[str]]) -> int:
        return sum(len(upstream[file]) for file in group[0] if file in upstream)

    taken, sizes = (set[str](), set[str]()), [0, 0]
    for group in sorted(groups, key=size, reverse=True):
        smaller = sizes.index(min(sizes))
        taken[smaller].update(group[1])
        sizes[smaller] += size(group)
    first, second = ([patch for patch in patches if patch.name in names] for names in taken)
    return first, second

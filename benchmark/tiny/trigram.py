# SPDX-License-Identifier: Apache-2.0
"""The yardstick: a trigram model with interpolated Kneser-Ney smoothing over the same tokens."""

from __future__ import annotations

import numpy as np

_DISCOUNT = 0.75


class Table:
    """Counts of ``order``-grams, looked up by their ids packed into one integer."""

    def __init__(self, grams: np.ndarray, counts: np.ndarray) -> None:
        self._grams, self._counts = grams, counts

    def __call__(self, grams: np.ndarray) -> np.ndarray:
        """Counts as float64, 0 for what was never seen."""
        if not len(self._grams):
            return np.zeros(len(grams))
        at = np.searchsorted(self._grams, grams).clip(max=len(self._grams) - 1)
        return np.where(self._grams[at] == grams, self._counts[at], 0).astype(np.float64)


def _table(grams: np.ndarray) -> Table:
    return Table(*np.unique(grams, return_counts=True))


class Trigram:
    """p(c | a, b), discounted by 0.75 and backed by p(c | b), that by p(c), that by 1 / V.

    The lower orders count distinct left neighbours, not occurrences.
    """

    def __init__(self, ids: np.ndarray, vocabulary: int) -> None:
        """``ids``: the training text, any integer type, [n]."""
        self._vocabulary = v = vocabulary
        a, b, c = (ids[i : len(ids) - 2 + i].astype(np.int64) for i in range(3))
        trigrams = np.unique((a * v + b) * v + c)
        bigrams = np.unique(b * v + c)
        self._of_abc = _table((a * v + b) * v + c)
        self._of_ab = _table(a * v + b)
        self._kinds_ab = _table(trigrams // v)
        self._before_bc = _table(trigrams % (v * v))
        self._before_b = _table(trigrams % (v * v) // v)
        self._kinds_b = _table(bigrams // v)
        self._before_c = _table(bigrams % v)
        self._bigrams = len(bigrams)
        self._kinds = len(np.unique(c))

    def log_probabilities(self, ids: np.ndarray) -> np.ndarray:
        """float64 [n - 2], of each token of a text after its first two."""
        v = self._vocabulary
        a, b, c = (ids[i : len(ids) - 2 + i].astype(np.int64) for i in range(3))
        uniform = np.full(len(c), 1 / v)
        total = np.full(len(c), float(self._bigrams))
        one = _mix(self._before_c(c), total, np.full(len(c), float(self._kinds)), uniform)
        two = _mix(self._before_bc(b * v + c), self._before_b(b), self._kinds_b(b), one)
        three = _mix(self._of_abc((a * v + b) * v + c), self._of_ab(a * v + b), self._kinds_ab(a * v + b), two)
        return np.log(three)


def _mix(count: np.ndarray, total: np.ndarray, kinds: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Discounted estimate plus the discounts' mass spread as ``lower``; ``lower`` alone where nothing was seen."""
    seen = total > 0
    safe = np.where(seen, total, 1)
    return np.where(seen, (np.maximum(count - _DISCOUNT, 0) + _DISCOUNT * kinds * lower) / safe, lower)

"""A set of ids, in 16 bytes each, that finds repeated ids in the same time at any size of a span.

Sorted runs as in a log-structured merge tree: a new run is merged with the one before it while that is not larger than
twice its size. Each run is searched, so a look-up takes log2(ids) searches at most.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas.util
import pyarrow as pa

hash_array: Any = pandas.util.hash_array  # loaded on first use, unknown to type checkers

# Two independent 64-bit hashes (SipHash) stand for an id. Of 10**9 ids, two have the same ones with a probability of
# 1e-21, so a row is not taken for a repetition by them in practice; memory holds no text.
_KEYS = ("millrace row ids", "millrace, second")


class Hashes(NamedTuple):
    """Hashes of ids: two uint64 (ids,), sorted by the first ones in a run."""

    first: np.ndarray
    second: np.ndarray

    @classmethod
    def of(cls, ids: pa.ChunkedArray) -> Hashes:
        texts = ids.to_numpy()
        return cls(*(hash_array(texts, hash_key=key, categorize=False) for key in _KEYS))

    def at(self, rows: np.ndarray) -> Hashes:
        return Hashes(self.first[rows], self.second[rows])


class SeenIds:
    """A set of ids that only grows."""

    def __init__(self) -> None:
        self._runs: list[Hashes] = []  # each at least twice as large as the next

    def has(self, ids: Hashes) -> np.ndarray:
        """Return bool (ids,): True for an id that was added."""
        found = np.zeros(len(ids.first), dtype=bool)
        order = np.argsort(ids.first)  # neighbouring searches touch neighbouring memory
        asked = ids.at(order)
        for run in self._runs:
            found[order] |= _in(run, asked)
        return found

    def add(self, ids: Hashes) -> None:
        """Add ids; an id may be added again."""
        if len(ids.first):
            self._runs.append(ids.at(np.argsort(ids.first, kind="stable")))
        self._merge()

    def take(self, other: SeenIds) -> None:
        """Add all ids of another set."""
        self._runs = sorted((*self._runs, *other._runs), key=lambda run: -len(run.first))
        self._merge()

    def _merge(self) -> None:
        while len(self._runs) > 1 and len(self._runs[-2].first) <= 2 * len(self._runs[-1].first):
            last, before = self._runs.pop(), self._runs.pop()
            both = Hashes(*map(np.concatenate, zip(before, last, strict=True)))
            self._runs.append(both.at(np.argsort(both.first, kind="stable")))  # two sorted runs are merged in one pass


def _in(run: Hashes, asked: Hashes) -> np.ndarray:
    """Return bool (asked,): True for ids of a run. Different ids may share a first hash, though hardly ever."""
    found = np.zeros(len(asked.first), dtype=bool)
    rows = np.arange(len(asked.first))
    places = np.searchsorted(run.first, asked.first)
    while len(rows):
        here = places < len(run.first)
        rows, places = rows[here], places[here]
        same = run.first[places] == asked.first[rows]
        rows, places = rows[same], places[same]
        found[rows] |= run.second[places] == asked.second[rows]
        rows, places = rows[~found[rows]], places[~found[rows]] + 1
    return found

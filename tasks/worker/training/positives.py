"""Which items belong to each query, over all rows of a lineage so far, in memory or in files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

import numpy as np

from tasks.worker.training.token_columns import Column, File

ROWS_AT_ONCE = 2**18  # in memory
_KEY_BITS = 63
_FILES = ("queries", "offsets", "keys")


@dataclass(frozen=True)
class Positives:
    """The keys of the items that belong to each query with several of them, all int64.

    `queries` (Q,): keys of these queries, ascending. `offsets` (Q + 1,): the items of the query at place q are
    `keys[offsets[q]:offsets[q + 1]]`, distinct and ascending.
    """

    queries: np.ndarray
    offsets: np.ndarray
    keys: np.ndarray

    @classmethod
    def of(cls, query_key: np.ndarray, key: np.ndarray) -> Positives:
        """Return the positives of pairs, int64 (pairs,) not negative each; a pair may stand there more than once."""
        both = distinct(np.stack([query_key, key], axis=1))
        queries, counts = np.unique(both[:, 0], return_counts=True)
        several = counts > 1  # the only item of a query is excluded as its own
        offsets = np.concatenate([[0], np.cumsum(counts[several])]).astype(np.int64)
        return cls(queries[several], offsets, both[np.repeat(several, counts), 1])

    @classmethod
    def open(cls, folder: Path, name: str) -> Positives:
        """Return what a `PositivesFile` of this name has, left in its files."""
        return cls(*(cast(np.ndarray, Column(File(folder / f"{name}.{each}", np.int64))) for each in _FILES))

    def lists(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the items of some queries, one after another: whose each is, a place in `queries`, and its key.

        Args:
            queries: int64 (n,), distinct and ascending; those that are not known have none.
        """
        place = np.searchsorted(self.queries, queries)
        there = place < len(self.queries)
        there[there] = self.queries[place[there]] == queries[there]
        begins, counts = (np.zeros(len(queries), dtype=np.int64) for _ in range(2))
        begins[there] = self.offsets[place[there]]
        counts[there] = self.offsets[place[there] + 1] - begins[there]
        places = np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        return np.repeat(np.arange(len(queries)), counts), self.keys[places]

    def among(self, query_key: np.ndarray, batch_key: np.ndarray) -> np.ndarray:
        """Return whether each item of a batch belongs to each query, bool (queries, items).

        The time grows with the positives of these queries, and not with the product of queries and items.
        """
        queries, row_of = np.unique(query_key, return_inverse=True)
        whose, wanted = self.lists(queries)
        if not len(wanted) or not len(batch_key):
            return np.zeros((len(query_key), len(batch_key)), dtype=bool)
        keys, column_of = np.unique(batch_key, return_inverse=True)
        column = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        hit = keys[column] == wanted
        table = np.zeros((len(queries), len(keys)), dtype=bool)
        table[whose[hit], column[hit]] = True
        return table[row_of][:, column_of]


class PositivesFile:
    """Files of positives that are written query by query: `<name>.queries`, `<name>.offsets` and `<name>.keys`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._files: list[BinaryIO] = [(folder / f"{name}.{each}").open("wb") for each in _FILES]
        self._total = 0
        np.zeros(1, dtype=np.int64).tofile(self._files[1])

    def add(self, query_key: np.ndarray, key: np.ndarray) -> None:
        """Add pairs as `Positives.of` takes them; their queries come after all that are there."""
        found = Positives.of(query_key, key)
        for file, values in zip(self._files, (found.queries, found.offsets[1:] + self._total, found.keys), strict=True):
            values.tofile(file)
        self._total += len(found.keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files:
            file.close()


class Buckets:
    """Many records of a few keys, sorted without holding more than some of them in memory.

    They are dealt to buckets by the first bits of their first key, which is a hash; each bucket is then sorted on its
    own. The buckets are in the order of the keys, so it is as if all had been sorted at once.
    """

    def __init__(self, folder: Path, name: str, rows: int, keys: int) -> None:
        """Prepare the buckets, files of `folder` while they are in use; `rows`: how many there may be in all."""
        self._bits = max(0, (rows // ROWS_AT_ONCE).bit_length())
        self._paths = [folder / f"{name}.bucket-{number}" for number in range(2**self._bits)]
        self._keys = keys

    def add(self, records: np.ndarray) -> None:
        """Add records, int64 (n, keys), not negative."""
        records = distinct(records)  # a search log says much more than once
        bucket = records[:, 0] >> (_KEY_BITS - self._bits)
        ends = np.cumsum(np.bincount(bucket, minlength=len(self._paths)))
        for path, some in zip(self._paths, np.split(records, ends[:-1]), strict=True):
            if len(some):
                with path.open("ab") as file:
                    some.tofile(file)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the records of each bucket, int64 (n, keys), each once and ascending; the bucket is then deleted."""
        for path in self._paths:
            if path.exists():
                records = np.fromfile(path, dtype=np.int64).reshape(-1, self._keys)
                path.unlink()
                yield distinct(records)


def distinct(records: np.ndarray) -> np.ndarray:
    """Return records of keys, int64 (n, keys), each once and ascending by the first key, then the next."""
    records = records[np.lexsort(records.T[::-1])]
    new = np.ones(len(records), dtype=bool)
    new[1:] = (records[1:] != records[:-1]).any(axis=1)
    return records[new]

"""The positive items of each query, over all rows of a lineage so far, in memory or in files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

import numpy as np

from tasks.worker.training.token_columns import Column, RecordFile

ROWS_AT_ONCE = 2**18  # rows in memory
_KEY_BITS = 63
_FILES = ("queries", "offsets", "keys")


@dataclass(frozen=True)
class Positives:
    """The item keys of each query that has several positive items; all arrays int64.

    `queries` (Q,): keys of these queries, ascending. `offsets` (Q + 1,): the items of query number q are
    `keys[offsets[q]:offsets[q + 1]]`, distinct and ascending.
    """

    queries: np.ndarray
    offsets: np.ndarray
    keys: np.ndarray

    @classmethod
    def of(cls, query_key: np.ndarray, key: np.ndarray) -> Positives:
        """Return the positives of pairs, int64 (pairs,) each, not negative; pairs may repeat."""
        both = distinct(np.stack([query_key, key], axis=1))
        queries, counts = np.unique(both[:, 0], return_counts=True)
        several = counts > 1  # a query's only item is its own, excluded anyway
        offsets = np.concatenate([[0], np.cumsum(counts[several])]).astype(np.int64)
        return cls(queries[several], offsets, both[np.repeat(several, counts), 1])

    @classmethod
    def open(cls, folder: Path, name: str) -> Positives:
        """Open the files of the `PositivesFile` with this name, which are not read into memory."""
        return cls(*(cast(np.ndarray, Column(RecordFile(folder / f"{name}.{each}", np.int64))) for each in _FILES))

    def lists(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the items of some queries, concatenated: the place of each one's query in `queries`, and its key.

        Args:
            queries: int64 (n,), distinct and ascending; unknown queries have no item.
        """
        place = np.searchsorted(self.queries, queries)
        there = place < len(self.queries)
        there[there] = self.queries[place[there]] == queries[there]
        begins, counts = (np.zeros(len(queries), dtype=np.int64) for _ in range(2))
        begins[there] = self.offsets[place[there]]
        counts[there] = self.offsets[place[there] + 1] - begins[there]
        return np.repeat(np.arange(len(queries)), counts), self.keys[ranges(begins, counts)]

    def among(self, query_key: np.ndarray, batch_key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return places in `query_key` and in `batch_key`, int64: each query with an item that is its positive.

        Search time grows with the positives of these queries, not with the product of queries and items.
        """
        queries, row_of = np.unique(query_key, return_inverse=True)
        whose, wanted = self.lists(queries)
        columns = np.argsort(batch_key, kind="stable")
        keys = batch_key[columns]
        first = np.searchsorted(keys, wanted)
        hit = np.flatnonzero(np.append(keys, -1)[first] == wanted)  # keys are not negative
        first, whose = first[hit], whose[hit]
        same = np.searchsorted(keys, wanted[hit], side="right") - first
        column, whose = columns[ranges(first, same)], np.repeat(whose, same)
        rows = np.argsort(row_of, kind="stable")
        asked = np.bincount(row_of, minlength=len(queries))
        row = rows[ranges((np.cumsum(asked) - asked)[whose], asked[whose])]
        return row, np.repeat(column, asked[whose])

    def part(self, queries: np.ndarray) -> Positives:
        """Return the positives of some queries, int64 (n,), distinct and ascending, in memory."""
        whose, keys = self.lists(queries)
        counts = np.bincount(whose, minlength=len(queries))
        several = counts > 0
        return Positives(queries[several], np.append(0, np.cumsum(counts[several])), keys)


def ranges(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the numbers of some ranges, one after the other, int64; `begins` and `counts` int64 (ranges,)."""
    return np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


class PositivesFile:
    """Writes positives query by query to files: `<name>.queries`, `<name>.offsets` and `<name>.keys`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._files: list[BinaryIO] = [(folder / f"{name}.{each}").open("wb") for each in _FILES]
        self._total = 0
        np.zeros(1, dtype=np.int64).tofile(self._files[1])

    def add(self, query_key: np.ndarray, key: np.ndarray) -> None:
        """Add pairs, as in `Positives.of`; their query keys must be larger than all before."""
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
    """Sorts many records of a few keys, with one bucket in memory at a time.

    A record's bucket is given by the first bits of its first key, which is a hash. Buckets are in the order of the
    keys, and each is sorted on its own, so all records come out sorted.
    """

    def __init__(self, folder: Path, name: str, rows: int, keys: int) -> None:
        """Prepare the buckets, temporary files in `folder`; `rows`: upper limit of the records."""
        self._bits = max(0, (rows // ROWS_AT_ONCE).bit_length())
        self._paths = [folder / f"{name}.bucket-{number}" for number in range(2**self._bits)]
        self._keys = keys

    def add(self, records: np.ndarray) -> None:
        """Add records, int64 (n, keys), not negative."""
        records = distinct(records)  # search logs repeat a lot
        bucket = records[:, 0] >> (_KEY_BITS - self._bits)
        ends = np.cumsum(np.bincount(bucket, minlength=len(self._paths)))
        for path, some in zip(self._paths, np.split(records, ends[:-1]), strict=True):
            if len(some):
                with path.open("ab") as file:
                    some.tofile(file)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the records of each bucket, int64 (n, keys), distinct and ascending, and delete the bucket."""
        for path in self._paths:
            if path.exists():
                records = np.fromfile(path, dtype=np.int64).reshape(-1, self._keys)
                path.unlink()
                yield distinct(records)


def distinct(records: np.ndarray) -> np.ndarray:
    """Return the distinct records, int64 (n, keys), sorted by the first key, then the next."""
    records = records[np.lexsort(records.T[::-1])]
    new = np.ones(len(records), dtype=bool)
    new[1:] = (records[1:] != records[:-1]).any(axis=1)
    return records[new]

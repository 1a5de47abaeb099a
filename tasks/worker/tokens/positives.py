"""Which items belong to each query, over all training rows of a run, in memory or in files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from tasks.worker.tokens.columns import Column, File

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
    def of(cls, query_key: np.ndarray, key: np.ndarray, pair: np.ndarray) -> Positives:
        """Return the positives among rows; int64 (rows,) not negative, likewise, and float32 (rows,)."""
        query_key, key = query_key[pair > 0], key[pair > 0]
        order = np.lexsort((key, query_key))
        query_key, key = query_key[order], key[order]
        new = np.ones(len(order), dtype=bool)
        new[1:] = (query_key[1:] != query_key[:-1]) | (key[1:] != key[:-1])
        queries, counts = np.unique(query_key[new], return_counts=True)
        several = counts > 1  # the only item of a query is excluded as its own
        offsets = np.concatenate([[0], np.cumsum(counts[several])]).astype(np.int64)
        return cls(queries[several], offsets, key[new][np.repeat(several, counts)])

    @classmethod
    def open(cls, folder: Path, name: str) -> Positives:
        """Return what `write_positives` wrote under this name, left in its files."""
        return cls(*(cast(np.ndarray, Column(File(folder / f"{name}.{each}", np.int64))) for each in _FILES))

    def among(self, query_key: np.ndarray, batch_key: np.ndarray) -> np.ndarray:
        """Return whether each item of a batch belongs to each query, bool (queries, items).

        The time grows with the positives of these queries, and not with the product of queries and items.
        """
        known = np.zeros((len(query_key), len(batch_key)), dtype=bool)
        queries, row_of = np.unique(query_key, return_inverse=True)
        place = np.searchsorted(self.queries, queries)
        there = place < len(self.queries)
        there[there] = self.queries[place[there]] == queries[there]
        if not there.any():
            return known
        begins, counts = (np.zeros(len(queries), dtype=np.int64) for _ in range(2))
        begins[there] = self.offsets[place[there]]
        counts[there] = self.offsets[place[there] + 1] - begins[there]
        places = np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        keys, column_of = np.unique(batch_key, return_inverse=True)
        wanted = self.keys[places]
        column = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        hit = keys[column] == wanted
        table = np.zeros((len(queries), len(keys)), dtype=bool)
        table[np.repeat(np.arange(len(queries)), counts)[hit], column[hit]] = True
        return table[row_of][:, column_of]


def write_positives(pieces: Iterable[tuple[np.ndarray, np.ndarray]], rows: int, folder: Path, name: str) -> None:
    """Write the positives among many rows into files of `folder`, without holding more than some of them in memory.

    The queries are dealt to buckets by the first bits of their keys, which are hashes; each bucket is then sorted on
    its own. The buckets are in the order of the keys, so the files are as if all had been sorted at once.

    Args:
        pieces: the keys of queries and of their items, int64 (n,) each, of rows where they belong together.
        rows: how many there may be in all.
        name: the files are `<name>.queries`, `<name>.offsets` and `<name>.keys`.
    """
    bits = max(0, (rows // ROWS_AT_ONCE).bit_length())
    buckets = [folder / f"{name}.bucket-{number}" for number in range(2**bits)]
    for query_key, key in pieces:
        both = np.stack([query_key, key], axis=1)
        bucket = both[:, 0] >> (_KEY_BITS - bits)
        both = both[np.argsort(bucket, kind="stable")]
        ends = np.cumsum(np.bincount(bucket, minlength=len(buckets)))
        for path, some in zip(buckets, np.split(both, ends[:-1]), strict=True):
            if len(some):
                with path.open("ab") as file:
                    some.tofile(file)
    total = 0
    with (
        (folder / f"{name}.queries").open("wb") as queries,
        (folder / f"{name}.offsets").open("wb") as offsets,
        (folder / f"{name}.keys").open("wb") as keys,
    ):
        np.zeros(1, dtype=np.int64).tofile(offsets)
        for path in buckets:
            if path.exists():
                both = np.fromfile(path, dtype=np.int64).reshape(-1, 2)
                found = Positives.of(both[:, 0], both[:, 1], np.ones(len(both), dtype=np.float32))
                found.queries.tofile(queries)
                found.keys.tofile(keys)
                (found.offsets[1:] + total).tofile(offsets)
                total += len(found.keys)
                path.unlink()

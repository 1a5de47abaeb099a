"""The nearest items that are not known to be right, and not so near that they may well be."""

from typing import NamedTuple

import numpy as np

from infra.store.base import Store
from tasks.data.items import TEXT
from tasks.data.rows import ITEM_ID
from tasks.worker.negatives.known import KnownPairs, id_hashes, text_hashes
from tasks.worker.search.index import Index


class ReleasedItems(NamedTuple):
    """The vectors of a release; hashes of the ids and of the texts of its items by place, int64 (vectors,)."""

    vectors: Index
    ids: np.ndarray
    texts: np.ndarray
    order: np.ndarray  # int64 (vectors,): the places in the order of the hashes of their ids

    @classmethod
    def open(cls, store: Store, prefix: str, model_version: str, memory_bytes: int) -> "ReleasedItems":
        """Open the vectors; arguments and errors are those of `Index`."""
        index = Index(store, prefix, model_version, memory_bytes)
        ids, texts = np.zeros(index.vectors, dtype=np.int64), np.zeros(index.vectors, dtype=np.int64)
        for first, items in index.tables([ITEM_ID, TEXT]):
            here = slice(first, first + items.num_rows)
            ids[here], texts[here] = id_hashes(items[ITEM_ID]), text_hashes(items[TEXT])
        return cls(index, ids, texts, np.argsort(ids, kind="stable"))

    def places_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the place of each item by the hash of its id, int64 (items,); -1 where it has no vector."""
        if not len(self.order):
            return np.full(len(ids), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.ids, ids, sorter=self.order), len(self.order) - 1)
        places = self.order[at]
        return np.where(self.ids[places] == ids, places, -1)


def nearest_negatives(
    released: ReleasedItems, queries: np.ndarray, hashes: np.ndarray, limits: np.ndarray, known: KnownPairs, count: int
) -> np.ndarray:
    """Return the places of the `count` nearest items of each query that score below its limit and are not known.

    Exact: the search goes deeper for queries whose nearest items are known.

    Args:
        queries: float32 (queries, width), of unit length.
        hashes: int64 (queries,), of the queries' texts.
        limits: float32 (queries,), of the cosine.

    Returns:
        int64 (queries, count), nearest first; -1 where there are fewer.
    """
    found = np.full((len(queries), count), -1, dtype=np.int64)
    left, depth = np.arange(len(queries)), 4 * count
    while len(left) and released.vectors.vectors:
        near = released.vectors.search(queries[left], depth, below=limits[left])
        there = np.isfinite(near.scores)
        these = hashes[left, None]
        right = known.has(these, released.ids[near.places]) | known.has(these, released.texts[near.places])
        wanted = there & ~right
        number = wanted.cumsum(axis=1)  # from 1, of each among the wanted ones
        row, column = np.nonzero(wanted & (number <= count))
        found[left[row], number[row, column] - 1] = near.places[row, column]
        left = left[(number[:, -1] < count) & there[:, -1] & (depth < released.vectors.vectors)]
        depth *= 4
    return found

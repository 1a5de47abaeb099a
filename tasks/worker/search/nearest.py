"""The nearest items that are not known to be right, and not so near that they may well be."""

import numpy as np

from tasks.worker.search.released_items import ReleasedItems
from tasks.worker.search.right_items import RightItems


def nearest_negatives(
    released: ReleasedItems, queries: np.ndarray, keys: np.ndarray, limits: np.ndarray, right: RightItems, count: int
) -> np.ndarray:
    """Return the places of the `count` nearest items of each query that score below its limit and are not right.

    Exact: the search goes deeper for queries whose nearest items are right.

    Args:
        queries: float32 (queries, width), of unit length.
        keys: int64 (queries,), of the queries' texts.
        limits: float32 (queries,), of the cosine.

    Returns:
        int64 (queries, count), nearest first; -1 where there are fewer.
    """
    found = np.full((len(queries), count), -1, dtype=np.int64)
    left, depth = np.arange(len(queries)), 4 * count
    while len(left) and released.vectors.vectors:
        near = released.vectors.search(queries[left], depth, below=limits[left])
        there = np.isfinite(near.scores)
        wanted = there & ~right.has(keys[left, None], near.places)
        number = wanted.cumsum(axis=1)  # from 1, of each among the wanted ones
        row, column = np.nonzero(wanted & (number <= count))
        found[left[row], number[row, column] - 1] = near.places[row, column]
        left = left[(number[:, -1] < count) & there[:, -1] & (depth < released.vectors.vectors)]
        depth *= 4
    return found

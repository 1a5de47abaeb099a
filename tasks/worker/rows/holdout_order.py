"""The order in which a span's queries are sampled, and the files that hold them in this order.

A query's place is a hash of its normalised text. The first file holds the lowest places, and each further file as many
rows as all files before it, so reading the queries up to any place reads at most about twice their rows.
"""

import math

import numpy as np

FIRST_ROWS = 1024  # approximate rows of the first file


def mix_bits(values: np.ndarray) -> np.ndarray:
    """Return uint64 whose bits all depend on all bits of `values` (the finalizer of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def query_places(keys: np.ndarray) -> np.ndarray:
    """Return the place of each query, uint64 (queries,); different keys have different places.

    The bits are mixed because the holdout may be decided by the same hash of the query.

    Args:
        keys: int64 (queries,), from `hash_queries`.
    """
    return mix_bits(keys.view(np.uint64))


def first_places(rows: int) -> np.ndarray:
    """Return the first place of each file in a folder of `rows` rows, uint64 (files,)."""
    halvings = max(0, math.ceil(math.log2(max(1, rows) / FIRST_ROWS)))
    return np.array([0, *(2 ** (63 - halvings + number) for number in range(1, halvings + 1))], dtype=np.uint64)


def files_of(places: np.ndarray, rows: int) -> np.ndarray:
    """Return the file number of each place, int64 (places,), in a folder of `rows` rows."""
    return np.searchsorted(first_places(rows), places, side="right") - 1

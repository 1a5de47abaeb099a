"""Hashes of queries, and the places of queries in the holdout's files, which follow from these."""

import hashlib
from collections.abc import Iterable

import numpy as np

from tasks.data.rows import normal_text

QUERY_PLACE = "(query place)"  # column of held-out rows and pairs, uint64, from `query_places`


def hash_queries(queries: Iterable[str]) -> np.ndarray:
    """Return a hash of each normalised query, int64 (queries,)."""
    hashed = (hashlib.blake2b(normal_text(query).encode(), digest_size=8).digest() for query in queries)
    return np.array([int.from_bytes(digest, "little", signed=True) for digest in hashed], dtype=np.int64)


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

"""Metrics of a model's vectors as a whole: collapse, and compatibility with another model's vectors."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

CHUNK_ROWS = 1024  # vectors in double precision at once
CHUNK_SCORES = 2**24  # scores of queries and items in memory at once
DECIMALS = 4  # vectors that are equal to four decimals count as equal
NEIGHBOURS = 10


class Vectors(NamedTuple):
    """A model's finite vectors of the corpus."""

    finite: np.ndarray  # float32 (items, width), of unit length
    texts: np.ndarray  # int64 (items,), equal for items with an equal text
    nan_share: float  # share of all items


def _effective_rank(vectors: Vectors) -> float:
    """Return e to the entropy of the singular values' shares: 1 if all vectors are collinear, at most the width."""
    width = vectors.finite.shape[1]
    gram = np.zeros((width, width))
    for start in range(0, len(vectors.finite), CHUNK_ROWS):
        part = vectors.finite[start : start + CHUNK_ROWS].astype(np.float64)
        gram += part.T @ part
    singular = np.sqrt(np.clip(np.linalg.eigvalsh(gram), 0.0, None))
    if not singular.any():
        return float("nan")
    shares = singular[singular > 0] / singular.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _mean_cosine(vectors: Vectors) -> float:
    """Return the mean cosine of all pairs of items: 1 if all vectors are equal, about 0 if they are spread."""
    count = len(vectors.finite)
    if count < 2:
        return float("nan")
    total = vectors.finite.sum(axis=0, dtype=np.float64)
    squares = float(np.einsum("ij,ij->", vectors.finite, vectors.finite, dtype=np.float64))
    return (float(total @ total) - squares) / (count * (count - 1))


def _duplicate_share(vectors: Vectors) -> float:
    """Return the share of items whose vector, to four decimals, equals the vector of an item with another text."""
    if not len(vectors.finite):
        return float("nan")
    rounded = np.ascontiguousarray(np.rint(vectors.finite * 10**DECIMALS).astype(np.int16))
    whole = rounded.view(np.dtype((np.void, rounded.dtype.itemsize * rounded.shape[1])))[:, 0]
    _, which = np.unique(whole, return_inverse=True)
    texts_of = np.bincount(np.unique(np.stack([which, vectors.texts], axis=1), axis=0)[:, 0])
    return float((texts_of[which] > 1).mean())


# One entry for each metric of the family in configs/schema/gates.py.
VECTORS: dict[str, Callable[[Vectors], float]] = {
    "effective_rank": _effective_rank,
    "mean_cosine": _mean_cosine,
    "nan_share": lambda vectors: vectors.nan_share,
    "duplicate_share": _duplicate_share,
}


def vector_metrics(vectors: np.ndarray, texts: np.ndarray) -> dict[str, float]:
    """Return the metrics of a model's vectors; a metric is NaN without finite vectors.

    Args:
        vectors: float32 (items, width), unit vectors or not finite, at least one.
        texts: int64 (items,), equal for items with an equal text.
    """
    finite = np.isfinite(vectors).all(axis=1)
    share = float(1 - finite.mean())
    of = Vectors(vectors, texts, share) if finite.all() else Vectors(vectors[finite], texts[finite], share)
    return {name: each(of) for name, each in VECTORS.items()}


class Answers(NamedTuple):
    """A model's vectors of the corpus, float32 (items, width), and the nearest items of some queries."""

    corpus: np.ndarray
    nearest: np.ndarray  # the result of `nearest_items`


def _same_item_cosine(ours: Answers, theirs: Answers) -> float | None:
    """Return the mean cosine of the vectors of the same items; None if the widths differ."""
    if ours.corpus.shape != theirs.corpus.shape:
        return None
    return float(np.einsum("ij,ij->i", ours.corpus, theirs.corpus, dtype=np.float64).mean())


def _neighbour_overlap(ours: Answers, theirs: Answers) -> float | None:
    """Return the mean share of a query's nearest items that both models have; None without a query."""
    if not ours.nearest.size:
        return None
    pairs = zip(ours.nearest, theirs.nearest, strict=True)
    return float(np.mean([len(np.intersect1d(one, other)) / len(one) for one, other in pairs]))


# One entry for each metric of the family in configs/schema/gates.py; None if undefined.
COMPATIBILITY: dict[str, Callable[[Answers, Answers], float | None]] = {
    "same_item_cosine": _same_item_cosine,
    "neighbour_overlap@10": _neighbour_overlap,
}


def compatibility_metrics(ours: Answers, theirs: Answers) -> dict[str, float]:
    """Return the agreement of two models on the same queries and corpus."""
    found = {name: each(ours, theirs) for name, each in COMPATIBILITY.items()}
    return {name: value for name, value in found.items() if value is not None}


def nearest_items(queries: np.ndarray, corpus: np.ndarray) -> np.ndarray:
    """Return each query's ten nearest items by cosine, or all if fewer exist, unordered.

    Args:
        queries: float32 (queries, width), unit vectors.
        corpus: float32 (items, width), unit vectors, of at least one item.

    Returns:
        Rows of the corpus, int64 (queries, items).
    """
    first = max(0, len(corpus) - NEIGHBOURS)
    found = np.zeros((len(queries), len(corpus) - first), dtype=np.int64)
    rows = max(1, CHUNK_SCORES // len(corpus))
    for start in range(0, len(queries), rows):
        scores = np.nan_to_num(queries[start : start + rows] @ corpus.T, nan=-np.inf)
        found[start : start + rows] = np.argpartition(scores, first, axis=1)[:, first:]
    return found

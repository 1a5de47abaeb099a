"""Checks of a table before consumers read it: the release's items, vectors of its model, a good index."""

from __future__ import annotations

import hashlib
import time
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from tasks.foundation.errors import DataError, StoreError
from tasks.worker.export.release_vectors import ReleaseVectors
from tasks.worker.export.target import Target

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

QUERIES = 100  # sampled vectors; give recall@10 of a good index to about 0.005
NEAREST = 10
_SAME_SCORE = 1e-5  # items with the same text have the same vector; each is a correct answer


class ContentMismatch(StoreError):
    """A table's content differs from the release."""


class IndexQuality(NamedTuple):
    """Recall and speed of an index: `query_ms` is the median of warm queries; `queries` counts the sampled vectors."""

    recall: float
    query_ms: float
    queries: int


def check_content(target: Target, table: str, release: ReleaseVectors) -> None:
    """Check a table's number of rows, ids by partition, and model.

    Raises:
        Different: the table's content differs from the release.
    """
    where = f"{target.where}, table {table}"
    if (count := target.count(table)) != release.count:
        raise ContentMismatch(f"{where}: {count} rows, but the release has {release.count} vectors")
    if others := target.count_other_models(table, release.model_version):
        raise ContentMismatch(
            f"{where}: {others} of {count} vectors are not by the release's model {release.model_version}"
        )
    partitions = [
        hashlib.sha256("".join(f"{item_id}\n" for item_id in sorted(target.item_ids(table, number))).encode())
        for number in range(release.partitions)
    ]
    found = hashlib.sha256("".join(each.hexdigest() for each in partitions).encode()).hexdigest()
    if found != release.ids_sha256:
        raise ContentMismatch(
            f"{where}: its items are not those of the release: ids {found}, expected {release.ids_sha256}"
        )


def check_index(target: Target, table: str, release: ReleaseVectors, min_recall: float) -> IndexQuality:
    """Compare the index with exact search for sampled vectors, then time the same queries: the service is warm then.

    Raises:
        DataError: the index finds too few of the nearest items.
    """
    queries = _sample(release)
    answers = [target.nearest(table, query, NEAREST) for query in queries]
    recall = _recall(release, queries, answers)
    if recall < min_recall:
        raise DataError(
            f"{target.where}, table {table}: recall@{NEAREST} of the index is {recall:.4f} over {len(queries)} sampled "
            f"vectors, below publish.min_recall {min_recall}; the target serves what it served before"
        )
    return IndexQuality(recall, _milliseconds(target, table, queries), len(queries))


def _sample(release: ReleaseVectors) -> np.ndarray:
    """Return vectors, float32 (queries, width), evenly spaced over the release."""
    wanted = np.unique(np.linspace(0, release.count - 1, QUERIES).astype(np.int64))
    found, first = [], 0
    for _, vectors in release.vectors():
        here = wanted[(wanted >= first) & (wanted < first + len(vectors))]
        found.append(vectors[here - first])
        first += len(vectors)
    return np.concatenate(found)


def _recall(release: ReleaseVectors, queries: np.ndarray, answers: list[list[str]]) -> float:
    """Return the share of the nearest items in the answers; equally near items are interchangeable."""
    k = min(NEAREST, release.count)
    ids = pa.array(sorted({item_id for answer in answers for item_id in answer}), pa.string())
    scores = np.full((len(queries), len(ids)), -np.inf, dtype=np.float32)  # exact scores of the answers
    best = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for item_ids, vectors in release.vectors():
        exact = queries @ vectors.T
        best = np.partition(np.concatenate([best, exact], axis=1), -k, axis=1)[:, -k:]
        place = pc.index_in(item_ids, value_set=ids).to_numpy(zero_copy_only=False)
        met = ~np.isnan(place.astype(np.float64))
        scores[:, place[met].astype(np.int64)] = exact[:, met]
    columns = {item_id: column for column, item_id in enumerate(ids.to_pylist())}
    right = 0
    for query, answer in enumerate(answers):
        least = best[query].min() - _SAME_SCORE
        right += min(k, sum(scores[query, columns[item_id]] >= least for item_id in set(answer)))
    return float(right / (k * len(queries)))


def _milliseconds(target: Target, table: str, queries: np.ndarray) -> float:
    took = []
    for query in queries:
        began = time.perf_counter()
        target.nearest(table, query, NEAREST)
        took.append(time.perf_counter() - began)
    return round(float(np.median(took)) * 1000, 3)

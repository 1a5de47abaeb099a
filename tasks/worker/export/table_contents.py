"""The vectors of a release for a target's table, and checks of that table before consumers read it.

Vectors come by partition, each checked against its checksum. A table has the release's items and vectors, and a good
index.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from infra.store.base import Store
from infra.store.manifest import FileEntry, check_sizes, expect_manifest, open_entry
from tasks.data.layers import Layers, layers_of
from tasks.data.rows import FIRST_SHA256, ITEM_ID, MODEL_VERSION, TEXT, VECTOR
from tasks.foundation.errors import DataError
from tasks.worker.catalogue.reuse import as_matrix, expect_vectors
from tasks.worker.export.target import PARTITION, DamagedTable, Index, Row, Shape, Target


class ReleaseVectors:
    """A complete folder of vectors, all by one model."""

    def __init__(
        self, store: Store, prefix: str, model_version: str, sha256: str, width: int | None = None,
        of_queries: str | None = None,
    ) -> None:  # fmt: skip
        """Open the folder.

        Args:
            sha256: the manifest's checksum in the release.
            width: numbers of each vector that a target gets, of unit length again; None: all.
            of_queries: the model that embeds the queries; None: that of the vectors.

        Raises:
            MissingFolder, CorruptFolder: the folder is incomplete, differs from the release, or is by another model.
        """
        manifest = check_sizes(store, prefix)
        expect_manifest(store, prefix, manifest, sha256)
        facts = manifest.facts
        expect_vectors(store, prefix, manifest, model_version)
        self.model_version = model_version
        self.named: str = facts.get(FIRST_SHA256, manifest.sha256)  # the checksum in the names of its tables
        self.count: int = facts["vectors"]
        self.partitions: int = facts["catalogue"]["partitions"]
        self.ids_sha256: str = facts["ids_sha256"]
        self.shape = Shape(width or facts["width"], facts["type"] == "fp16", of_queries or model_version)
        self._cut = width is not None
        self._store, self._prefix = store, prefix
        self.files = layers_of(manifest)
        self._parts: dict[int, Layers] = {}

    def rows_by_partition(self) -> dict[int, int]:
        """Return the number of rows of each non-empty partition."""
        counts = {number: self._part(number).items for number in self.files}
        return {number: rows for number, rows in counts.items() if rows}

    def rows(self, partition: int) -> pa.Table:
        """Return item_id, text, vector, model_version and partition of a partition's items, sorted by id.

        Raises:
            CorruptFolder: a file does not match the manifest's checksum.
        """
        return self.as_rows(self._part(partition).table([ITEM_ID, TEXT, VECTOR, MODEL_VERSION]), partition)

    def as_rows(self, table: pa.Table, partition: int) -> pa.Table:
        """Return rows as `rows` does; of columns item_id, text, vector and model_version, as files have them."""
        if self._cut:
            table = table.set_column(table.column_names.index(VECTOR), VECTOR, self._narrow(table[VECTOR]))
        version = table[MODEL_VERSION].cast(pa.string())
        table = table.set_column(table.column_names.index(MODEL_VERSION), MODEL_VERSION, version)
        return table.append_column(PARTITION, pa.array(np.full(table.num_rows, partition, dtype=np.int32)))

    def sample(self, numbers: np.ndarray) -> pa.Table:
        """Return item_id, text and vector of some items; reads only their partitions.

        Args:
            numbers: int64, ascending; an item's number counts through all partitions, from 0.
        """
        found, first = [], 0
        for partition, rows in self.rows_by_partition().items():
            here = numbers[(numbers >= first) & (numbers < first + rows)] - first
            if len(here):
                found.append(self.rows(partition).select([ITEM_ID, TEXT, VECTOR]).take(here))
            first += rows
        return pa.concat_tables(found)

    def vectors(self) -> Iterator[tuple[pa.ChunkedArray, np.ndarray]]:
        """Yield ids and unit vectors, float32 (rows, width), partition by partition."""
        for number in self.files:
            table = self._part(number).table([ITEM_ID, VECTOR])
            yield table[ITEM_ID], _unit(as_matrix(table[VECTOR])[:, : self.shape.width])  # float16 rounds

    def _narrow(self, vectors: pa.ChunkedArray) -> pa.FixedSizeListArray:
        """Return the first numbers of each vector, in the same type."""
        cut = _unit(as_matrix(vectors)[:, : self.shape.width])
        flat = pa.array(cut.astype(np.float16 if self.shape.fp16 else np.float32).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, self.shape.width)

    def _part(self, partition: int) -> Layers:
        """Return a partition's files, compared with their checksums at their first use."""
        if partition not in self._parts:
            self._parts[partition] = self.open_files(self.files[partition])
        return self._parts[partition]

    def open_files(self, files: Sequence[FileEntry], above: bool = False) -> Layers:
        """Return files of a partition, compared with their checksums. `above` as of `Layers.open`."""
        return Layers.open([open_entry(self._store, self._prefix, entry) for entry in files], above)


pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

SAMPLED_ITEMS = 1000  # others each time; finds damage of 0.5 % of the items in 99.3 of 100 checks
QUERIES = 100  # sampled vectors; give recall@10 of a good index to about 0.005
NEAREST = 10
_SAME_NUMBER = 2e-3  # difference of unit vectors; float16 rounds to 5e-4, once in the release and once in a service
_SAME_SCORE = 1e-5  # items with the same text have the same vector; each is a correct answer


class IndexQuality(NamedTuple):
    """Recall and speed of an index: `query_ms` is the median of warm queries; `queries` counts the sampled vectors."""

    recall: float
    query_ms: float
    queries: int


def check_content(target: Target, table: str, release: ReleaseVectors) -> None:
    """Check a table's number of rows, their model, and the texts and vectors of sampled items.

    Reads the same number of rows from the service at any size of the release.

    Raises:
        DamagedTable: the table is missing, can't be read, or differs from the release.
    """
    where = f"{target.where}, table {table}"
    if table not in target.tables():
        raise DamagedTable(f"{where}: it is gone")
    if (count := target.count(table)) != release.count:
        raise DamagedTable(f"{where}: {count} rows, but the release has {release.count} vectors")
    if others := target.count_other_models(table, release.model_version):
        raise DamagedTable(f"{where}: {others} of {count} vectors come from another model than {release.model_version}")
    numbers = np.random.default_rng().choice(release.count, min(SAMPLED_ITEMS, release.count), replace=False)
    expected = release.sample(np.sort(numbers))
    item_ids, texts = expected[ITEM_ID].to_pylist(), expected[TEXT].to_pylist()
    found = target.rows_of(table, item_ids)
    wrong = [
        item_id
        for item_id, text, vector in zip(item_ids, texts, as_matrix(expected[VECTOR]), strict=True)
        if item_id not in found or not _same(found[item_id], text, vector)
    ]
    if wrong:
        raise DamagedTable(
            f"{where}: {len(wrong)} of {len(item_ids)} sampled items are missing or have another text or vector than "
            f"in the release, for example {wrong[0]!r}"
        )


def check_ids(target: Target, table: str, release: ReleaseVectors) -> None:
    """Check that a table has all items of the release and no other, each in its partition. Reads all ids.

    Raises:
        DamagedTable: it has other items.
    """
    partitions = [
        hashlib.sha256("".join(f"{item_id}\n" for item_id in sorted(target.item_ids(table, number))).encode())
        for number in range(release.partitions)
    ]
    found = hashlib.sha256("".join(each.hexdigest() for each in partitions).encode()).hexdigest()
    if found != release.ids_sha256:
        raise DamagedTable(
            f"{target.where}, table {table}: its items are not those of the release: ids {found}, "
            f"expected {release.ids_sha256}"
        )


def check_index(
    target: Target, table: str, index: Index | None, release: ReleaseVectors, min_recall: float, served: bool
) -> IndexQuality:
    """Compare the service's search with exact search for sampled vectors, then time the same queries, now warm.

    Args:
        index: the table's index; None if the service searches exactly.
        served: consumers read the table already; for the message.

    Raises:
        DataError: the service finds too few of the nearest items.
    """
    queries = _sample(release)
    answers = [target.nearest(table, query, NEAREST) for query in queries]
    recall = _recall(release, queries, answers)
    if recall < min_recall:
        of = f"of the index {index.name}" if index is not None else "without an index"
        raise DataError(
            f"{target.where}, table {table}: recall@{NEAREST} {of} is {recall:.4f} over {len(queries)} sampled "
            f"vectors, below publish.min_recall {min_recall}; "
            + (
                "the table is being served. To load it again, drop it in the service, then: millrace publish"
                if served
                else "the target serves what it served before"
            )
        )
    return IndexQuality(recall, _milliseconds(target, table, queries), len(queries))


def _same(row: Row, text: str, vector: np.ndarray) -> bool:
    """Return True if a row has the text and the direction of the vector; a service may store it with another length."""
    if row.text != text or row.vector.shape != vector.shape:
        return False
    return bool(np.all(np.abs(_unit(row.vector) - _unit(vector)) <= _SAME_NUMBER))  # False if one is not a number


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Return float32 vectors of unit length; a vector of zeros becomes one of no numbers."""
    found = vectors.astype(np.float32)
    with np.errstate(invalid="ignore"):
        return found / np.linalg.norm(found, axis=-1, keepdims=True)


def _sample(release: ReleaseVectors) -> np.ndarray:
    """Return vectors, float32 (queries, width), evenly spaced over the release."""
    wanted = np.unique(np.linspace(0, release.count - 1, QUERIES).astype(np.int64))
    return _unit(as_matrix(release.sample(wanted)[VECTOR]))


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

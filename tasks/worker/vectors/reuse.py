"""Vectors that an earlier release of the same model holds: unchanged items need not be embedded again."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import CorruptFolder, read_manifest
from tasks.data.items import CONTENT, VECTOR, part_name
from tasks.data.rows import ITEM_ID

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

BATCH_VECTORS = 8192


class EarlierVectors:
    """The vectors of a folder, found by item id and content; empty without a folder.

    Raises:
        MissingFolder, CorruptFolder: the folder is not complete, or holds the vectors of another model.
    """

    def __init__(self, store: Store, prefix: str | None, model_version: str) -> None:
        self._store, self._prefix = store, prefix
        self._names: set[str] = set()
        self._partitions = 1
        if prefix is not None:
            manifest = read_manifest(store, prefix)
            if manifest.facts["model_version"] != model_version:
                by = manifest.facts["model_version"]
                raise CorruptFolder(f"{store.uri}/{prefix} holds vectors by {by}, expected {model_version}")
            self._names = {entry.name for entry in manifest.files}
            self._partitions = manifest.facts["catalogue"]["partitions"]

    def of_partition(self, number: int) -> dict[tuple[str, str], np.ndarray]:
        """Return (item id, content hash) -> vector of the partition that held these items; partitions only split."""
        name = part_name(number % self._partitions)
        if self._prefix is None or name not in self._names:
            return {}
        table = pq.read_table(self._store.local(f"{self._prefix}/{name}"), columns=[ITEM_ID, CONTENT, VECTOR])
        return dict(zip(_keys(table, CONTENT), as_matrix(table[VECTOR]), strict=True))

    def of_items(self, items: pa.Table, by: str) -> tuple[np.ndarray, np.ndarray]:
        """Return which items have a vector here, bool (items,), and those vectors, float32 (such items, width).

        Args:
            items: with the columns ITEM_ID and `by`, one row for each item.
            by: the column that must be equal as well: CONTENT or TEXT.
        """
        row_of = {key: row for row, key in enumerate(_keys(items, by))}
        found: dict[int, np.ndarray] = {}
        for table in self.batches(by):
            table = table.filter(pc.is_in(table[ITEM_ID], value_set=items[ITEM_ID].combine_chunks()))
            for key, vector in zip(_keys(table, by), as_matrix(table[VECTOR]), strict=True):
                if key in row_of:
                    found[row_of[key]] = vector.astype(np.float32)
        which = np.zeros(items.num_rows, dtype=bool)
        which[list(found)] = True
        width = len(next(iter(found.values()), ()))
        return which, np.array([found[row] for row in sorted(found)], dtype=np.float32).reshape(-1, width or 1)

    def nearest(self, queries: np.ndarray, k: int) -> set[str]:
        """Return the ids of the `k` items with the highest cosine to each query, all together.

        Args:
            queries: float32 (queries, width), of unit length.
        """
        scores = np.full((len(queries), 0), 0.0, dtype=np.float32)
        ids = np.empty((len(queries), 0), dtype=object)
        for table in self.batches(ITEM_ID):
            these = queries @ as_matrix(table[VECTOR]).astype(np.float32).T
            best = _best(these, k)
            scores = np.hstack([scores, np.take_along_axis(these, best, axis=1)])
            ids = np.hstack([ids, np.asarray(table[ITEM_ID].to_pylist(), dtype=object)[best]])
            kept = _best(scores, k)
            scores, ids = np.take_along_axis(scores, kept, axis=1), np.take_along_axis(ids, kept, axis=1)
        return set(ids.reshape(-1).tolist())

    def batches(self, column: str) -> Iterator[pa.Table]:
        """Yield all vectors with their item ids and another column, some thousand at a time."""
        for name in sorted(self._names):
            with pq.ParquetFile(self._store.local(f"{self._prefix}/{name}"), pre_buffer=False) as file:
                for batch in file.iter_batches(BATCH_VECTORS, columns=list({ITEM_ID, column, VECTOR})):
                    yield pa.Table.from_batches([batch])


def _keys(table: pa.Table, by: str) -> Iterator[tuple[str, str]]:
    return zip(table[ITEM_ID].to_pylist(), table[by].to_pylist(), strict=True)


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the columns of the `k` highest scores of each row, int64 (rows, k), or all columns if there are fewer."""
    if scores.shape[1] <= k:
        return np.tile(np.arange(scores.shape[1]), (len(scores), 1))
    return np.argpartition(scores, -k, axis=1)[:, -k:]


def as_matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of fixed-size lists as an array (rows, width) of its own type."""
    width = column.type.list_size
    flat = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate(flat).reshape(-1, width) if flat else np.zeros((0, width), dtype=np.float32)

"""Exact search over the vectors of a release, shard by shard; all vectors stay in memory if they are not too many."""

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import CorruptFolder, check_sizes
from tasks.contracts.search import Hit
from tasks.data.items import TEXT, VECTOR, VECTORS_KIND
from tasks.data.rows import ITEM_ID
from tasks.worker.vectors.reuse import as_matrix

MEMORY_BYTES = 2**30  # of vectors; a larger release is read from the shards for each query


class _Found(NamedTuple):
    score: float
    shard: int
    row: int


class Index:
    """The vectors of one folder, all by one model."""

    def __init__(self, store: Store, prefix: str, model_version: str, memory_bytes: int = MEMORY_BYTES) -> None:
        """Open the folder.

        Raises:
            MissingFolder, CorruptFolder: it is not complete, or holds vectors by another model.
        """
        manifest = check_sizes(store, prefix)
        by = manifest.facts.get("model_version")
        if manifest.kind != VECTORS_KIND or by != model_version:
            what = f"{store.uri}/{prefix} holds {manifest.kind} by {by}"
            raise CorruptFolder(f"{what}, expected vectors by {model_version}")
        folder = store.local(prefix)
        self._paths = [folder / entry.name for entry in manifest.files]
        self.vectors = sum(pq.read_metadata(path).num_rows for path in self._paths)
        each = np.dtype("float16" if manifest.facts.get("type") == "fp16" else "float32").itemsize
        fits = self.vectors * manifest.facts["width"] * each <= memory_bytes
        self._kept = [self._read(path) for path in self._paths] if fits else None

    def nearest(self, query: np.ndarray, k: int) -> tuple[Hit, ...]:
        """Return the `k` items with the highest cosine, best first.

        Args:
            query: float32 (width,), of unit length.
        """
        best: list[_Found] = []
        for number, vectors in enumerate(self._shards()):
            scores = vectors.astype(np.float32, copy=False) @ query
            rows = np.argpartition(scores, -k)[-k:] if len(scores) > k else np.arange(len(scores))
            found = (_Found(float(scores[row]), number, int(row)) for row in rows)
            best = heapq.nsmallest(k, (*best, *found), key=lambda one: (-one.score, one.shard, one.row))
        return tuple(self._hit(one) for one in best)

    def _shards(self) -> Iterator[np.ndarray]:
        if self._kept is not None:
            yield from self._kept
        else:
            yield from (self._read(path) for path in self._paths)

    def _read(self, path: Path) -> np.ndarray:
        return as_matrix(pq.read_table(path, columns=[VECTOR])[VECTOR])

    def _hit(self, one: _Found) -> Hit:
        row = one.row
        with pq.ParquetFile(self._paths[one.shard]) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if row < rows:
                    item = file.read_row_group(group, columns=[ITEM_ID, TEXT]).slice(row, 1).to_pylist()[0]
                    return Hit(score=round(one.score, 6), item_id=item[ITEM_ID], text=item[TEXT])
                row -= rows
        raise CorruptFolder(f"{self._paths[one.shard]} has no row {one.row}; its release can't be searched")

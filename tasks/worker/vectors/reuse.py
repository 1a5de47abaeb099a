"""Vectors that an earlier release of the same model holds: unchanged items need not be embedded again."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import CorruptFolder, read_manifest
from tasks.data.items import CONTENT, VECTOR, part_name
from tasks.data.rows import ITEM_ID


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
        keys = zip(table[ITEM_ID].to_pylist(), table[CONTENT].to_pylist(), strict=True)
        return dict(zip(keys, as_matrix(table[VECTOR]), strict=True))


def as_matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of fixed-size lists as an array (rows, width) of its own type."""
    width = column.type.list_size
    flat = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate(flat).reshape(-1, width) if flat else np.zeros((0, width), dtype=np.float32)

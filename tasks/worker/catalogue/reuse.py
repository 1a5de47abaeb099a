"""Vectors of an earlier release of the same model, reused for unchanged items."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store, sha256_of
from infra.store.manifest import MANIFEST, CorruptFolder, FileEntry, read_manifest
from tasks.data.items import CONTENT, VECTOR, part_name
from tasks.data.rows import ITEM_ID
from tasks.worker.catalogue.earlier_shards import expect_vectors
from tasks.worker.process.job import Share

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

BATCH_VECTORS = 8192


class EarlierVectors:
    """The vectors of a folder, by item id and content; empty without a folder.

    Raises:
        MissingFolder, CorruptFolder: the folder is not complete, or holds the vectors of another model.
    """

    def __init__(self, store: Store, prefix: str | None, model_version: str, manifests: Store | None = None) -> None:
        """Read the manifest; from `manifests` if given: the same workspace, shared by several workers."""
        self._store, self._prefix = store, prefix
        self._files: tuple[FileEntry, ...] = ()
        self._partitions = 1
        self.max_tokens: int | None = None  # limit to which the texts of these vectors were cut
        if prefix is not None:
            manifest = read_manifest(manifests or store, prefix)
            expect_vectors(store, prefix, manifest, model_version)
            self._files = manifest.files
            self._partitions = manifest.facts["catalogue"]["partitions"]
            self.max_tokens = manifest.facts["max_tokens"]

    def of_partition(self, number: int) -> dict[tuple[str, str], np.ndarray]:
        """Return (item id, content hash) -> vector of the earlier partition with these items; empty if damaged."""
        entry = self._entry(number)
        if entry is not None and not self._whole(entry):
            print(f"{self._local(entry)} is damaged: its items are embedded again", flush=True)
            return {}
        table = self.table_of_partition(number, [ITEM_ID, CONTENT])
        return {} if table is None else dict(zip(_keys(table, CONTENT), as_matrix(table[VECTOR]), strict=True))

    def table_of_partition(self, number: int, columns: Sequence[str]) -> pa.Table | None:
        """Return the vectors and other columns of the earlier partition with these items; None if it is empty.

        Partitions are only ever split, so `number` modulo the earlier count finds it.
        """
        entry = self._entry(number)
        return None if entry is None else pq.read_table(self._local(entry), columns=[*columns, VECTOR])

    def check(self, share: Share) -> None:
        """Compare this worker's share of the files with their checksums. Raises CorruptFolder: names the file."""
        for entry in self._files[share.index :: share.of]:
            if not self._whole(entry):
                raise CorruptFolder(f"{self._local(entry)} does not match its checksum in {MANIFEST}")

    def of_items(self, items: pa.Table, by: str, width: int, share: Share) -> tuple[np.ndarray, np.ndarray]:
        """Find the vectors of items in this worker's share of the files.

        Args:
            items: with the columns ITEM_ID and `by`, one row for each item.
            by: the second column that must match, CONTENT or TEXT.

        Returns:
            bool (items,), True if found; float32 (items, width), zeros if not found.
        """
        row_of = {key: row for row, key in enumerate(_keys(items, by))}
        which, vectors = np.zeros(items.num_rows, dtype=bool), np.zeros((items.num_rows, width), dtype=np.float32)
        for table in self._batches(by, share):
            table = table.filter(pc.is_in(table[ITEM_ID], value_set=items[ITEM_ID].combine_chunks()))
            for key, vector in zip(_keys(table, by), as_matrix(table[VECTOR]), strict=True):
                if (row := row_of.get(key)) is not None:
                    which[row], vectors[row] = True, vector
        return which, vectors

    def holds(self, ids: pa.ChunkedArray, share: Share) -> np.ndarray:
        """Return bool (ids,): True for an id in this worker's share of the files, with any content."""
        found = np.zeros(len(ids), dtype=bool)
        for entry in self._files[share.index :: share.of]:
            there = pq.read_table(self._local(entry), columns=[ITEM_ID])[ITEM_ID]
            found |= pc.is_in(ids, value_set=there.combine_chunks()).to_numpy()
        return found

    def _entry(self, number: int) -> FileEntry | None:
        name = part_name(number % self._partitions)
        return next((entry for entry in self._files if entry.name == name), None)

    def _whole(self, entry: FileEntry) -> bool:
        path = self._local(entry)
        return path.is_file() and sha256_of(path) == entry.sha256

    def _local(self, entry: FileEntry) -> Path:
        assert self._prefix is not None
        return self._store.local(entry.key(self._prefix))

    def _batches(self, column: str, share: Share) -> Iterator[pa.Table]:
        """Yield batches of vectors with their item ids and another column."""
        for entry in self._files[share.index :: share.of]:
            with pq.ParquetFile(self._local(entry), pre_buffer=False) as file:
                for batch in file.iter_batches(BATCH_VECTORS, columns=list({ITEM_ID, column, VECTOR})):
                    yield pa.Table.from_batches([batch])


def _keys(table: pa.Table, by: str) -> Iterator[tuple[str, str]]:
    return zip(table[ITEM_ID].to_pylist(), table[by].to_pylist(), strict=True)


def as_matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of fixed-size lists as an array (rows, width) of its own type."""
    width = column.type.list_size
    flat = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate(flat).reshape(-1, width) if flat else np.zeros((0, width), dtype=np.float32)

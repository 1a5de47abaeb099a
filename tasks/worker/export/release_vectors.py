"""The vectors of a release for a target: by partition, each checked against its checksum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import check_sizes, expect_manifest, open_file
from tasks.data.items import MODEL_VERSION, TEXT, VECTOR, part_name
from tasks.data.rows import ITEM_ID
from tasks.worker.catalogue.earlier_shards import expect_vectors
from tasks.worker.catalogue.reuse import as_matrix
from tasks.worker.export.target import PARTITION, Shape


class ReleaseVectors:
    """A complete folder of vectors, all by one model."""

    def __init__(self, store: Store, prefix: str, model_version: str, sha256: str) -> None:
        """Open the folder.

        Args:
            sha256: the manifest's checksum in the release.

        Raises:
            MissingFolder, CorruptFolder: the folder is incomplete, differs from the release, or is by another model.
        """
        manifest = check_sizes(store, prefix)
        expect_manifest(store, prefix, manifest, sha256)
        facts = manifest.facts
        expect_vectors(store, prefix, manifest, model_version)
        self.model_version = model_version
        self.sha256 = manifest.sha256
        self.count: int = facts["vectors"]
        self.partitions: int = facts["catalogue"]["partitions"]
        self.ids_sha256: str = facts["ids_sha256"]
        self.shape = Shape(facts["width"], facts["type"] == "fp16")
        self._store, self._prefix, self._manifest = store, prefix, manifest
        self._files = {entry.name: entry for entry in manifest.files}
        self._paths: dict[int, Path] = {}

    def rows_by_partition(self) -> dict[int, int]:
        """Return the number of rows of each non-empty partition."""
        there = [number for number in range(self.partitions) if part_name(number) in self._files]
        return {number: pq.read_metadata(self._path(number)).num_rows for number in there}

    def rows(self, partition: int) -> pa.Table:
        """Return item_id, text, vector, model_version and partition of a partition's items, sorted by id.

        Raises:
            CorruptFolder: the file does not match the manifest's checksum.
        """
        table = pq.read_table(self._path(partition), columns=[ITEM_ID, TEXT, VECTOR, MODEL_VERSION])
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
        for number in range(self.partitions):
            if part_name(number) in self._files:
                table = pq.read_table(self._path(number), columns=[ITEM_ID, VECTOR])
                found = as_matrix(table[VECTOR]).astype(np.float32)
                yield table[ITEM_ID], found / np.linalg.norm(found, axis=1, keepdims=True)  # float16 rounds

    def _path(self, partition: int) -> Path:
        """Return a partition's file, compared with its checksum at its first use."""
        if partition not in self._paths:
            self._paths[partition] = open_file(self._store, self._prefix, self._manifest, part_name(partition))
        return self._paths[partition]

"""Reads the partitions of a catalogue, a few thousand items at a time."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store, sha256_of
from infra.store.manifest import MANIFEST, CorruptFolder, read_manifest
from tasks.contracts.references import CatalogueRef
from tasks.data.items import part_name


class Catalogue:
    """A catalogue, opened by its manifest. A partition is read, and checked, when it is asked for."""

    def __init__(self, store: Store, ref: CatalogueRef, manifests: Store | None = None) -> None:
        """Read the manifest, from `manifests` where that is given: the same workspace, shared by several workers."""
        self.ref = ref
        self._store = store
        self._files = {entry.name: entry for entry in read_manifest(manifests or store, ref.prefix).files}

    def items(self, partition: int, batch_items: int) -> Iterator[pa.Table]:
        """Yield the live items of a partition by item id, at most `batch_items` at a time.

        Raises:
            CorruptFolder: the file is not the one that the manifest names.
        """
        entry = self._files.get(part_name(partition))
        if entry is None:  # no item falls into this partition
            return
        path = self._store.local(f"{self.ref.prefix}/{entry.name}")
        if not path.is_file() or sha256_of(path) != entry.sha256:
            raise CorruptFolder(f"{path} does not match its checksum in {MANIFEST}")
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_items):
                yield pa.Table.from_batches([batch])

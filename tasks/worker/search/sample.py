"""A stable sample of a release's items: ids, texts, vectors and features, read from a few partitions.

An item is in the sample by the hash that also chooses its partition, so two releases sample the same items, and a
release of any size is read in a few shards.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import expect_manifest, open_file, read_manifest
from tasks.contracts.runs import Release
from tasks.data.items import CONTENT, TEXT, VECTOR, part_name, partition_of
from tasks.data.rows import ITEM_ID
from tasks.worker.catalogue.earlier_shards import expect_vectors
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.reuse import as_matrix

MOST_ITEMS = 5000  # a page with more is slow to draw, and comparing all with all takes seconds
BATCH_ITEMS = 8192


class Sample(NamedTuple):
    """Items by id. `vectors` is float32 (items, width)."""

    ids: list[str]
    texts: list[str]
    contents: list[str]
    vectors: np.ndarray

    def at(self, rows: list[int]) -> "Sample":
        """Return the sample of some rows."""
        ids, texts, contents = ([each[row] for row in rows] for each in (self.ids, self.texts, self.contents))
        return Sample(ids, texts, contents, self.vectors[rows])


def sampling(vectors: int) -> int:
    """Return the power of two that samples at most about MOST_ITEMS items, and at least half as many if there are."""
    every = 1
    while vectors > every * MOST_ITEMS:
        every *= 2
    return every


def read_sample(store: Store, release: Release, every: int) -> Sample:
    """Return the items of a release whose hash is a multiple of `every`, a power of two.

    Raises:
        MissingFolder, CorruptFolder: the vectors are missing, damaged, or not the released ones.
    """
    manifest = read_manifest(store, release.vectors_prefix)
    expect_manifest(store, release.vectors_prefix, manifest, release.vectors_sha256)
    expect_vectors(store, release.vectors_prefix, manifest, release.model.version)
    names = {entry.name for entry in manifest.files}
    batches: list[pa.Table] = []
    for number in _partitions(release, every):
        if (name := part_name(number)) in names:
            with pq.ParquetFile(open_file(store, release.vectors_prefix, manifest, name)) as file:
                read = file.iter_batches(BATCH_ITEMS, columns=[ITEM_ID, TEXT, CONTENT, VECTOR])
                batches.extend(_chosen(pa.Table.from_batches([batch]), every) for batch in read)
    if not batches:
        return Sample([], [], [], np.zeros((0, manifest.facts["width"]), dtype=np.float32))
    found = pa.concat_tables(batches).sort_by(ITEM_ID)
    ids, texts, contents = (found[name].to_pylist() for name in (ITEM_ID, TEXT, CONTENT))
    return Sample(ids, texts, contents, as_matrix(found[VECTOR]).astype(np.float32))


def read_features(store: Store, release: Release, every: int, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the features of the sampled items by id, in the order of `names`; a missing one is empty.

    Raises:
        MissingFolder, CorruptFolder: the catalogue is missing or damaged.
    """
    if not names:
        return {}
    catalogue, found = Catalogue(store, release.catalogue), dict[str, tuple[str, ...]]()
    for number in _partitions(release, every):
        for items in catalogue.items(number, BATCH_ITEMS):
            chosen = _chosen(items.select([ITEM_ID, *(name for name in names if name in items.column_names)]), every)
            for row in chosen.to_pylist():
                values = (row.get(name) for name in names)
                found[row[ITEM_ID]] = tuple("" if value is None else str(value) for value in values)
    return found


def _partitions(release: Release, every: int) -> range:
    """Return the partitions that hold the sample: both numbers are powers of two."""
    partitions = release.catalogue.partitions
    return range(0, partitions, min(every, partitions))


def _chosen(items: pa.Table, every: int) -> pa.Table:
    if every == 1:
        return items
    return items.filter(pa.array([partition_of(each, every) == 0 for each in items[ITEM_ID].to_pylist()]))

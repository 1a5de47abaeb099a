"""The delta of a partition, which a refresh writes over the files of earlier vectors instead of a new shard.

The changes are read from the two catalogues, and no earlier vector is read until deltas are merged.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store, sha256_of
from infra.store.manifest import CorruptFolder, FileEntry, MissingFolder, open_entry
from tasks.data.layers import DELTA_SHARE, PARQUET, layers_below, merged, next_generation
from tasks.data.rows import CONTENT, ITEM_ID, delta_name
from tasks.worker.catalogue.changed_items import ChangedItems, changed_items, ids_sha256
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.reuse import EarlierShards


class Written(NamedTuple):
    """The files of a partition after a refresh."""

    path: Path | None  # the newest, a local file; None: nothing has changed
    file: FileEntry
    below: tuple[FileEntry, ...]


class Deltas:
    """Writes deltas over the files of earlier vectors."""

    def __init__(self, store: Store, manifests: Store, earlier: EarlierShards, now: Catalogue) -> None:
        """Open the earlier catalogue; its manifest is read from `manifests`. Without one there are no deltas."""
        self._store, self._earlier, self._now = store, earlier, now
        self._before: Catalogue | None = None
        if earlier.catalogue is not None and earlier.whole:
            try:
                self._before = Catalogue(store, earlier.catalogue, manifests)
            except (MissingFolder, CorruptFolder) as error:
                print(f"partitions with a change are written whole: {error}", flush=True)

    def changed(self, number: int) -> ChangedItems | None:
        """Return the changes for a partition's delta; None if the partition is to be written whole.

        It is if its files don't hold all items of the earlier catalogue, or too many of them have changed.
        """
        whole = self._earlier.whole.get(number)
        if self._before is None or whole is None:
            return None
        try:
            found = changed_items(self._before, self._now, number)
        except CorruptFolder as error:
            print(f"partition {number} is written whole: {error}", flush=True)
            return None
        if found is None or found.changed[CONTENT].null_count or ids_sha256(found.before) != whole.ids_sha256:
            return None
        return found if found.changed.num_rows + len(found.gone) <= DELTA_SHARE * whole.vectors else None

    def write(self, number: int, live: pa.Table, removed: Sequence[str], folder: Path) -> Written | None:
        """Write a partition's delta to the folder, merged with older ones; None if it is to be written whole.

        Args:
            live: rows of a shard, for the items that have changed.
            removed: ids of the items that have no vector now.
        """
        layers = self._earlier.layers[number]
        if not live.num_rows and not removed:
            return Written(None, layers[-1], layers[:-1])
        rows = merged([pa.concat_tables([live, _removing(removed, live.schema)])])
        path = folder / delta_name(number, next_generation(layers))
        pq.write_table(rows, path, **PARQUET)
        stay = layers_below([entry.bytes for entry in layers], path.stat().st_size)
        if stay == 0:
            return None
        if older := layers[stay:]:
            try:
                opened = [pq.read_table(open_entry(self._store, "", entry)) for entry in older]
            except CorruptFolder as error:
                print(f"partition {number} is written whole: {error}", flush=True)
                return None
            pq.write_table(merged([*(table.cast(rows.schema) for table in opened), rows]), path, **PARQUET)
        entry = FileEntry(name=path.name, bytes=path.stat().st_size, sha256=sha256_of(path))
        return Written(path, entry, layers[:stay])


def _removing(item_ids: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Return rows of a delta that remove items: without text, vector and content."""
    ids = pa.array(item_ids, pa.string())
    nulls = {field.name: pa.nulls(len(ids), field.type) for field in schema}
    return pa.table({**nulls, ITEM_ID: ids}, schema=schema)

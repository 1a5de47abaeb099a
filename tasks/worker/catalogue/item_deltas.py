"""The delta of a catalogue's partition: its items with another record, over the files of an earlier catalogue.

So sources of few items write these, and not every partition that has one of them. Of the earlier files, the records of
these items alone are merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import sha256_of
from infra.store.manifest import FileEntry
from tasks.data.layers import DELTA_SHARE, layers_below, merged, next_generation
from tasks.data.rows import (
    CONTENT,
    DELETED,
    FEED_AT,
    ITEM_ID,
    TEXT,
    UPDATED_AT,
    deleted_name,
    delta_name,
    part_name,
)
from tasks.worker.catalogue.records import SCATTERED, in_utc, newest
from tasks.worker.catalogue.sources import Kept

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

_BEFORE, _NOW = "before", "now"  # DuckDB's tables


class ItemDelta(NamedTuple):
    """A partition's new delta and the files below it; `items` and `deleted` are what it adds to the earlier numbers."""

    path: Path | None  # a local file; None: no record differs
    file: FileEntry | None
    below: list[FileEntry]
    items: int
    deleted: int


def write_delta(
    database: duckdb.DuckDBPyConnection, kept: Kept, features: Sequence[str], number: int, added: pa.Table | None,
    lost: pa.Array, folder: Path,
) -> ItemDelta | None:  # fmt: skip
    """Write the delta of a partition to the folder; None: too much changes, so the partition is to be written whole.

    Args:
        added: records of new sources.
        lost: ids of its items whose earlier records do not count.

    Raises:
        DamagedBase: a file of the earlier partition is missing or damaged.
    """
    if number not in kept.layers:
        return None
    layers, paths, named = kept.layers[number], kept.paths(number), kept.named(number)
    lowest = [entry for entry in named if entry.name in (part_name(number), deleted_name(number))]
    touched = pc.unique(pa.concat_arrays([lost, *([] if added is None else added[ITEM_ID].chunks)]))
    if len(touched) > DELTA_SHARE * sum(pq.read_metadata(paths[entry.name]).num_rows for entry in lowest):
        return None
    before = _records(paths, touched, features)
    now = _merged(database, before.filter(pc.invert(pc.is_in(before[ITEM_ID], value_set=lost))), added, features)
    gone, there = (int(pc.sum(each[DELETED]).as_py() or 0) for each in (before, now))
    items, deleted = (now.num_rows - there) - (before.num_rows - gone), there - gone
    rows = _differing(database, before, now)
    if not rows.num_rows:
        return ItemDelta(None, None, named, items, deleted)
    path = folder / delta_name(number, 1)
    pq.write_table(rows, path, compression="zstd")
    sizes = [sum(entry.bytes for entry in lowest), *(entry.bytes for entry in layers[1:])]
    stay = layers_below(sizes, path.stat().st_size)
    if stay == 0:
        path.unlink()
        return None
    older = [each.name for each in layers[stay:]]
    if older:
        opened = (pq.read_table(paths[name]).cast(rows.schema) for name in older)
        pq.write_table(merged([*opened, rows]), path, compression="zstd")
    sha256 = sha256_of(path)
    name = delta_name(number, next_generation(layers), sha256)
    below = [entry for entry in named if entry.name not in older]
    return ItemDelta(path, FileEntry(name=name, bytes=path.stat().st_size, sha256=sha256), below, items, deleted)


def _records(paths: Mapping[str, Path], item_ids: pa.Array, features: Sequence[str]) -> pa.Table:
    """Return the records of items in a partition, deleted ones too.

    Args:
        paths: its files by name, the newest last.
    """
    columns, found = [ITEM_ID, TEXT, *features, UPDATED_AT, CONTENT, FEED_AT, DELETED], list[pa.Table]()
    for path in paths.values():
        table = pq.read_table(path)
        if DELETED not in table.column_names:
            table = table.append_column(DELETED, pa.repeat(False, table.num_rows))
        found.append(table.filter(pc.is_in(table[ITEM_ID], value_set=item_ids)).select(columns))
    newest_rows = merged(found)
    return newest_rows.filter(newest_rows[DELETED].is_valid())


def _merged(
    database: duckdb.DuckDBPyConnection, earlier: pa.Table, added: pa.Table | None, features: Sequence[str]
) -> pa.Table:
    """Return the newest record of each item, of the earlier ones and the added ones."""
    records = earlier.drop_columns([CONTENT])  # it is made anew, with that of the added ones
    if added is not None:
        records = pa.concat_tables([records, added.select(records.column_names).cast(records.schema)])
    database.register(SCATTERED, records)
    found = database.sql(newest(features)).to_arrow_table()
    database.unregister(SCATTERED)
    return found


def _differing(database: duckdb.DuckDBPyConnection, before: pa.Table, now: pa.Table) -> pa.Table:
    """Return the records of now that differ, by item id, and an id without a record for each item that has none now."""
    database.register(_BEFORE, before)
    database.register(_NOW, now)
    rows = database.sql(f"""
        (FROM {_NOW} EXCEPT FROM {_BEFORE})
        UNION ALL BY NAME SELECT {ITEM_ID} FROM {_BEFORE} ANTI JOIN {_NOW} USING ({ITEM_ID})
        ORDER BY {ITEM_ID}
    """).to_arrow_table()
    database.unregister(_BEFORE)
    database.unregister(_NOW)
    return rows.cast(in_utc(rows.schema))

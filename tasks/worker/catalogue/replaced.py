"""Feeds of which another version took the place, for a catalogue built on one with the earlier versions.

An hourly export is a new version of the day's feed: the same items and a few more. DuckDB compares both versions, and
only the items with another record are merged again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import duckdb
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import open_files
from tasks.data.items import DELETED, FEED_AT, FEED_KIND, TEXT, UPDATED_AT
from tasks.data.rows import ITEM_ID
from tasks.worker.catalogue.records import Source, from_feed, quoted, records_of
from tasks.worker.catalogue.sources import Replaced

_CHANGED = "changed_items"  # the table of the items with another record
LOST = f"(SELECT {ITEM_ID} FROM {_CHANGED} WHERE lost)"  # an earlier record is gone, and no later one hides that


class Versions(NamedTuple):
    """The files of a feed's earlier version and of the one in its place."""

    before: Source
    now: Source


def open_versions(store: Store, replaced: Sequence[Replaced], features: Sequence[str]) -> list[Versions] | None:
    """Open both versions of each feed; None if a feature has another type now, which changes all contents.

    Raises:
        MissingFolder, CorruptFolder: a version is missing or damaged; names the file.
    """
    found = []
    for earlier, feed in replaced:
        both = Versions(*(from_feed(open_files(store, each.prefix, FEED_KIND)) for each in (earlier, feed)))
        before, now = ({name: _types(each, name) for name in features} for each in both)
        if before != now:
            return None
        found.append(both)
    return found


def _types(source: Source, feature: str) -> set[str]:
    schemas = (pq.read_schema(path) for path in source.files)
    return {str(schema.field(feature).type) for schema in schemas if feature in schema.names}


def find_changes(
    database: duckdb.DuckDBPyConnection, versions: Sequence[Versions], types: Mapping[str, str], partitions: int
) -> set[int]:
    """Make the table of the items with another record; return the partitions of lost ones.

    An item is lost if a record of the earlier version is gone or changed, unless a later record of the new version wins
    over it anyway.
    """
    database.execute(f"CREATE TABLE {_CHANGED} ({ITEM_ID} VARCHAR, lost BOOLEAN)")
    names = ", ".join(quoted(name) for name in (ITEM_ID, TEXT, *types, UPDATED_AT, FEED_AT, DELETED))
    later = " AND ".join(
        f"(max({name}) FILTER (NOT now) IS NULL OR max({name}) FILTER (now) > max({name}) FILTER (NOT now))"
        for name in (UPDATED_AT, FEED_AT)
    )
    for before, now in versions:
        database.execute(f"""
            INSERT INTO {_CHANGED}
            SELECT {ITEM_ID}, count(*) FILTER (NOT now) > 0 AND NOT coalesce({later}, false) FROM (
                SELECT {names}, bool_and(now) AS now FROM (
                    SELECT {names}, false AS now FROM ({records_of(before, types, 1)})
                    UNION ALL SELECT {names}, true AS now FROM ({records_of(now, types, 1)})
                ) GROUP BY {names} HAVING bool_and(now) = bool_or(now)
            ) GROUP BY {ITEM_ID}
        """)
    lost = database.sql(f"SELECT DISTINCT CAST(md5_number_lower({ITEM_ID}) % {partitions} AS INTEGER) FROM {LOST}")
    return {number for (number,) in lost.fetchall()}


def changed_records(
    versions: Sequence[Versions], every: Iterator[Source], types: Mapping[str, str], partitions: int
) -> Iterator[str]:
    """Yield queries for the records to merge: of changed items in the new versions, and of lost items in all sources.

    Args:
        every: all sources of the catalogue; they are opened only if an item is lost.
    """
    for _, now in versions:
        yield f"{_select(now, types, partitions)} WHERE {ITEM_ID} IN (SELECT {ITEM_ID} FROM {_CHANGED} WHERE NOT lost)"
    for source in every:
        yield f"{_select(source, types, partitions)} WHERE {ITEM_ID} IN {LOST}"


def _select(source: Source, types: Mapping[str, str], partitions: int) -> str:
    return f"SELECT * FROM ({records_of(source, types, partitions)})"

"""Records of items from all sources: rows of spans, item feeds, and an earlier catalogue.

A record has the newest content of an item and, if a feed names it, the feed's latest entry. `newest` gives the same
result for any order of records, so a catalogue built in steps equals one built at once. The SQL is DuckDB's.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import open_file, read_manifest
from tasks.contracts.references import CatalogueRef
from tasks.data.items import CONTENT, DELETED, FEED_AT, TEXT, UPDATED_AT, part_name
from tasks.data.rows import ITEM, ITEM_ID, TIME
from tasks.worker.catalogue.scatter import PART

MEMORY = "768MiB"  # beyond it, DuckDB writes to disk. With Python and Arrow, a process stays below 2 GiB.


def connect(scratch: Path) -> duckdb.DuckDBPyConnection:
    """Return a new in-memory database that spills to the folder `scratch`."""
    settings = {
        "memory_limit": MEMORY,
        "temp_directory": str(scratch / "spilled"),
        "threads": len(os.sched_getaffinity(0)),
        "preserve_insertion_order": False,
    }
    return duckdb.connect(":memory:", config=settings)


class Catalogue:
    """A catalogue, opened by its manifest. A partition is read and checked on request."""

    def __init__(self, store: Store, ref: CatalogueRef, manifests: Store | None = None) -> None:
        """Read the manifest; from `manifests` if given: the same workspace, shared by several workers."""
        self.ref = ref
        self._store = store
        self._manifest = read_manifest(manifests or store, ref.prefix)
        self._files = {entry.name for entry in self._manifest.files}

    def items(self, partition: int, batch_items: int) -> Iterator[pa.Table]:
        """Yield the live items of a partition by item id, at most `batch_items` at a time.

        Raises:
            CorruptFolder: the file does not match the manifest's checksum.
        """
        if (name := part_name(partition)) not in self._files:  # no item falls into this partition
            return
        with pq.ParquetFile(open_file(self._store, self.ref.prefix, self._manifest, name)) as file:
            for batch in file.iter_batches(batch_items):
                yield pa.Table.from_batches([batch])


SCATTERED = "scattered"  # the table with the records of a partition


class Source(NamedTuple):
    """Parquet files of one kind, with the SQL expressions of TEXT, UPDATED_AT, FEED_AT and DELETED."""

    files: Sequence[Path]
    text: str
    updated_at: str
    feed_at: str
    deleted: str


def from_rows(files: Sequence[Path]) -> Source:
    """Return validated rows as a source: content without feed entries."""
    return Source(files, ITEM, TIME, "NULL", "NULL")


def from_feed(files: Sequence[Path]) -> Source:
    """Return rows of an item feed as a source: content unless the text is empty, as it may be of a deleted item.

    A full export often keeps the text of a deleted item, and no record from before its deletion.
    """
    has_text = f"trim({ITEM}) != ''"
    return Source(
        files, f"CASE WHEN {has_text} THEN {ITEM} END", f"CASE WHEN {has_text} THEN {TIME} END", TIME, DELETED
    )


def from_catalogue(files: Sequence[Path], deleted: bool) -> Source:
    """Return files of an earlier catalogue, all with live or all with deleted items, as a source."""
    return Source(files, TEXT, UPDATED_AT, FEED_AT, str(deleted).lower())


def records_of(source: Source, features: Mapping[str, str], partitions: int) -> str:
    """Return the query for the records of a source, with the partition number as PART.

    Args:
        features: name -> DuckDB type; null in the records if the files lack the column.
    """
    there = set(pq.read_schema(source.files[0]).names)
    columns = [f'CAST({quoted(name) if name in there else "NULL"} AS {kind}) AS {quoted(name)}'
               for name, kind in features.items()]  # fmt: skip
    select = ", ".join(
        [
            ITEM_ID,
            f"CAST({source.text} AS VARCHAR) AS {TEXT}",
            *columns,
            f"CAST({source.updated_at} AS TIMESTAMPTZ) AS {UPDATED_AT}",
            f"CAST({source.feed_at} AS TIMESTAMPTZ) AS {FEED_AT}",
            f"CAST({source.deleted} AS BOOLEAN) AS {DELETED}",
            f"CAST(md5_number_lower({ITEM_ID}) % {partitions} AS INTEGER) AS {PART}",
        ]
    )
    files = ", ".join(literal(str(path)) for path in source.files)
    return f"SELECT {select} FROM read_parquet([{files}], union_by_name = true)"


def newest(features: Sequence[str]) -> str:
    """Return the query for one record per item, by item id, from the table SCATTERED.

    The latest content and the latest feed record win; at equal times a deletion wins.
    """
    content = ", ".join(f"{literal(name)}: {quoted(name)}" for name in (TEXT, *features))
    names = ", ".join(quoted(name) for name in (TEXT, *features, UPDATED_AT, CONTENT))
    return f"""
        WITH records AS (
            SELECT *, CASE WHEN {TEXT} IS NULL THEN NULL ELSE sha256(CAST(to_json({{{content}}}) AS VARCHAR)) END
                AS {CONTENT}
            FROM {SCATTERED}
        ), contents AS (
            SELECT {ITEM_ID}, {names} FROM records
            QUALIFY row_number() OVER (
                PARTITION BY {ITEM_ID} ORDER BY {UPDATED_AT} DESC NULLS LAST, {CONTENT} DESC NULLS LAST) = 1
        ), feeds AS (
            SELECT {ITEM_ID}, {FEED_AT}, {DELETED} FROM records
            QUALIFY row_number() OVER (
                PARTITION BY {ITEM_ID} ORDER BY {FEED_AT} DESC NULLS LAST, {DELETED} DESC NULLS LAST) = 1
        )
        SELECT {ITEM_ID}, {names}, {FEED_AT}, coalesce({DELETED}, false) AS {DELETED}
        FROM contents JOIN feeds USING ({ITEM_ID}) ORDER BY {ITEM_ID}
    """


def quoted(name: str) -> str:
    """Return a column name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"

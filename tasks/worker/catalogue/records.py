"""Records of items from all sources: rows of spans, item feeds, and an earlier catalogue.

A record has the newest content of an item and, if a feed names it, the feed's latest entry. `newest` gives the same
result for any order of records, so a catalogue built in steps equals one built at once. The SQL is DuckDB's.

Records are split into partitions on disk, and memory depends neither on the records nor on the partitions: DuckDB's own
partitioned writing buffers rows of every partition, so its memory grows with both.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import open_entry, open_files, open_manifest, read_manifest
from tasks.contracts.references import CatalogueRef
from tasks.data.layers import Layers, layers_of
from tasks.data.rows import (
    CATALOGUE_KIND,
    CONTENT,
    DELETED,
    FEED_AT,
    ITEM,
    ITEM_ID,
    TEXT,
    TIME,
    UPDATED_AT,
    is_deleted_name,
    place_of_name,
)
from tasks.foundation.process import free_host_bytes

PART = "part"  # the column with the number of a record's partition
BATCH_RECORDS = 8192
FILES = 64  # open at once; more partitions take several passes over the records


def scatter(records: Iterable[pa.RecordBatch], folder: Path, partitions: int) -> None:
    """Write the records of each partition to its own file in the folder; an empty partition gets no file.

    Args:
        records: batches of one schema with PART, int32, from 0 to partitions - 1.
        partitions: a power of two.
    """
    _pass(records, folder, partitions, 0, 1)


def scattered(folder: Path, number: int) -> pa.Table | None:
    """Return the records of a partition, memory-mapped; None if it is empty."""
    path = _path(folder, number, 1)
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all() if path.exists() else None


def remove(folder: Path, number: int) -> None:
    """Delete the file of a partition, if it has one."""
    _path(folder, number, 1).unlink(missing_ok=True)


def _pass(records: Iterable[pa.RecordBatch], folder: Path, left: int, first: int, step: int) -> None:
    """Split records of the partitions first, first + step, ... (`left` of them) into at most FILES files."""
    ways = min(FILES, left)
    left //= ways
    paths = [_path(folder, first + way * step, left) for way in range(ways)]
    _split(records, paths, step)
    if left > 1:
        for way, path in enumerate(paths):
            if path.exists():
                _pass(_read(path), folder, left, first + way * step, step * ways)
                path.unlink()


def _path(folder: Path, number: int, partitions: int) -> Path:
    """Return the file whose first partition is `number`; a file of the last pass holds one partition."""
    return folder / f"{number}-of-{partitions}.arrow"


def _split(records: Iterable[pa.RecordBatch], paths: list[Path], step: int) -> None:
    """Append each record to the file of its partition number, divided by `step`, modulo the number of files."""
    with contextlib.ExitStack() as opened:
        writers: dict[int, pa.RecordBatchStreamWriter] = {}
        for batch in records:
            way = batch[PART].to_numpy() // step % len(paths)
            order = np.argsort(way, kind="stable")
            ordered = batch.take(pa.array(order))
            ends = np.cumsum(np.bincount(way, minlength=len(paths)))
            for number, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
                if start == end:
                    continue
                if number not in writers:
                    sink = opened.enter_context(pa.OSFile(str(paths[number]), "wb"))
                    writers[number] = opened.enter_context(pa.ipc.new_stream(sink, batch.schema))
                writers[number].write_batch(ordered.slice(start, end - start))


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file, in batches of BATCH_RECORDS or a little more."""
    with pa.OSFile(str(path)) as file:
        some: list[pa.RecordBatch] = []
        for batch in pa.ipc.open_stream(file):
            some.append(batch)
            if sum(each.num_rows for each in some) >= BATCH_RECORDS:
                yield pa.concat_batches(some)
                some = []
        if some:
            yield pa.concat_batches(some)


# Beyond these, DuckDB writes to disk. With Python and Arrow, a process stays below 4 GiB.
MEMORY_SHARE = (
    1 / 8
)  # a part of the memory that is free: a machine has several workers, and Arrow's tables beside DuckDB's
LEAST_BYTES, MOST_BYTES = 768 * 2**20, 3 * 2**30


def memory_bytes(free: int) -> int:
    """Return the bytes that a database takes of a machine before it writes to disk."""
    return max(LEAST_BYTES, min(MOST_BYTES, int(free * MEMORY_SHARE)))


def connect(scratch: Path) -> duckdb.DuckDBPyConnection:
    """Return a new in-memory database that spills to the folder `scratch`."""
    settings = {
        "memory_limit": f"{memory_bytes(free_host_bytes())}B",
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
        self._layers = layers_of(read_manifest(manifests or store, ref.prefix))

    def items(self, partition: int, batch_items: int) -> Iterator[pa.Table]:
        """Yield the live items of a partition by item id, at most `batch_items` at a time.

        Raises:
            CorruptFolder: a file does not match the manifest's checksum.
        """
        if not (files := self._layers.get(partition)):  # no item falls into this partition
            return
        layers = Layers.open([open_entry(self._store, self.ref.prefix, entry) for entry in files])
        yield from layers.batches(pq.read_schema(layers.paths[0]).names, batch_items)


SCATTERED = "scattered"  # the table with the records of a partition


class Source(NamedTuple):
    """Parquet files of one kind, with the SQL expressions of TEXT, UPDATED_AT, FEED_AT and DELETED.

    `counts` is the condition of a row that is a record.
    """

    files: Sequence[Path]
    text: str
    updated_at: str
    feed_at: str
    deleted: str
    counts: str = "true"


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


def from_catalogue(files: Mapping[str, Path], live: bool = False) -> list[Source]:
    """Return files of an earlier catalogue as sources; they hold each item of these partitions once.

    A row does not count if a newer file of its partition names the item. No item is in two partitions, so the files at
    each depth are one source: the newest of each partition, then those below them.

    Args:
        files: by name; if any, with the lowest one of each partition.
        live: without deleted items.
    """
    deltas: dict[int, dict[int, Path]] = {}
    lowest: dict[bool, list[Path]] = {False: [], True: []}
    for name, path in files.items():
        place = place_of_name(name)
        if place is None or place[1] == 0:
            lowest[is_deleted_name(name)].append(path)
        else:
            deltas.setdefault(place[0], {})[place[1]] = path
    newest_first = [[path for _, path in sorted(each.items(), reverse=True)] for each in deltas.values()]
    found, above = list[Source](), list[Path]()
    for depth in range(max(map(len, newest_first), default=0)):
        here = [each[depth] for each in newest_first if len(each) > depth]
        there = f"{DELETED} IS NOT NULL"  # else no source has the item any more
        found.append(_of_catalogue(here, DELETED, f"NOT {DELETED}" if live else there, above))
        above += here
    for deleted, paths in lowest.items():
        if paths and not (deleted and live):
            found.append(_of_catalogue(paths, str(deleted).lower(), "true", above))
    return found


def _of_catalogue(files: Sequence[Path], deleted: str, counts: str, above: Sequence[Path]) -> Source:
    if above:
        counts += f" AND {ITEM_ID} NOT IN (SELECT {ITEM_ID} FROM {parquet(above)})"
    return Source(files, TEXT, UPDATED_AT, FEED_AT, deleted, counts)


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
    return f"SELECT {select} FROM {parquet(source.files, 'union_by_name = true')} WHERE {source.counts}"


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


def in_utc(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `newest` with moments in UTC; DuckDB names the machine's own time zone for the same ones."""
    utc = pa.timestamp("us", tz="UTC")
    return pa.schema([each.with_type(utc) if each.name in (UPDATED_AT, FEED_AT) else each for each in schema])


def quoted(name: str) -> str:
    """Return a column name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def parquet(files: Iterable[Path], option: str = "") -> str:
    """Return Parquet files as an SQL table."""
    names = ", ".join(literal(str(path)) for path in files)
    return f"read_parquet([{names}]{', ' * bool(option)}{option})"


def choose(store: Store, ref: CatalogueRef, named: Sequence[str], others: int, features: Sequence[str]) -> pa.Table:
    """Return the live items among `named` and `others` more, by item id; memory holds only these.

    The others are the items with the lowest id hashes: a larger sample contains a smaller one, and a new item replaces
    at most one.

    Args:
        features: further columns; null if the catalogue lacks them.

    Returns:
        The columns ITEM_ID, TEXT, CONTENT, and the features.

    Raises:
        MissingFolder, CorruptFolder: the catalogue is missing or damaged.
    """
    entries = [entry for entry in open_manifest(store, ref.prefix, CATALOGUE_KIND).files
               if not is_deleted_name(entry.name)]  # fmt: skip
    files = open_files(store, ref.prefix, CATALOGUE_KIND, entries)
    sources = from_catalogue({entry.name: path for entry, path in zip(entries, files, strict=True)}, live=True)
    there = set(pq.read_schema(files[0]).names)
    columns = [ITEM_ID, TEXT, CONTENT, *dict.fromkeys(features)]
    selected = ", ".join(quoted(name) if name in there else f"NULL::DOUBLE AS {quoted(name)}" for name in columns)
    live = " UNION ALL ".join(f"SELECT {selected} FROM {parquet(each.files)} WHERE {each.counts}" for each in sources)
    wanted = ", ".join(quoted(name) for name in columns)
    with tempfile.TemporaryDirectory(prefix="millrace-") as scratch, connect(Path(scratch)) as database:
        database.register("named", pa.table({ITEM_ID: pa.array(named, pa.string())}))
        return database.sql(f"""
            WITH items AS NOT MATERIALIZED (
                SELECT *, md5_number_upper({ITEM_ID}) AS place, {ITEM_ID} IN (SELECT {ITEM_ID} FROM named) AS own
                FROM ({live})
            ), others AS (
                SELECT {wanted} FROM items WHERE NOT own ORDER BY place, {ITEM_ID} LIMIT {others}
            )
            SELECT {wanted} FROM items WHERE own UNION ALL FROM others ORDER BY {ITEM_ID}
        """).to_arrow_table()

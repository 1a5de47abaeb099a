"""Builds a catalogue: every live item with its newest text and features, in partitions by item id.

DuckDB reads the sources in batches. The records are split into partitions on disk, and each partition is merged on its
own, so memory does not grow with the number of items. Partitions of an earlier catalogue to which nothing is added are
named, neither read nor written.

An hourly export is a new version of the day's feed: the same items and a few more. DuckDB compares both versions, and
only the items with another record are merged again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Conflict, Store, sha256_of
from infra.store.manifest import (
    CorruptFolder,
    FileEntry,
    MissingFolder,
    expect_sound,
    next_folder,
    open_files,
    read_fact,
    read_manifest,
    seal,
)
from infra.store.records import place
from tasks.contracts.jobs import report
from tasks.contracts.references import CatalogueRef
from tasks.contracts.workspace import CATALOGUE
from tasks.data.erased import read_erased
from tasks.data.rows import (
    CATALOGUE_KIND,
    DELETED,
    FEED_AT,
    FEED_KIND,
    ITEM_ID,
    TEXT,
    UPDATED_AT,
    deleted_name,
    part_name,
    place_of_name,
)
from tasks.worker.catalogue.item_deltas import ItemDelta, write_delta
from tasks.worker.catalogue.records import (
    BATCH_RECORDS,
    SCATTERED,
    Source,
    connect,
    from_feed,
    in_utc,
    newest,
    quoted,
    records_of,
    remove,
    scatter,
    scattered,
)
from tasks.worker.catalogue.sources import (
    Base,
    DamagedBase,
    Kept,
    Replaced,
    Sources,
    feature_names,
    feature_types,
    inputs_of,
    usable,
    whole,
)

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


def _lost_items(database: duckdb.DuckDBPyConnection, number: int, partitions: int) -> pa.Array:
    """Return the ids of a partition's lost items."""
    query = f"SELECT {ITEM_ID} FROM {LOST} WHERE md5_number_lower({ITEM_ID}) % {partitions} = {number}"
    return database.sql(query).to_arrow_table()[ITEM_ID].combine_chunks()


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


pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

BATCH_ITEMS = 4096
_FORMAT = 1  # part of the key: increase it if the same sources give different files


def build(store: Store, sources: Sources, bases: Sequence[CatalogueRef], config: Config, turn: int = 0) -> CatalogueRef:
    """Return the catalogue of these sources; build it if the workspace lacks it, or has a damaged one.

    Args:
        bases: earlier catalogues; the first one made of a part of the sources, with the same features, is used. A
            damaged one is left out, and its damaged files are set apart: all that it holds is in its sources.
        turn: number that says whose bytes are compared before files are named on (infra/store/manifest.py).

    Raises:
        MissingFolder, CorruptFolder: a source is missing or damaged; names the file.
    """
    features = feature_names(config)
    key = {"format": _FORMAT, "sources": sources.names, "features": features,
           "shard_rows": config.infer.shard_rows}  # fmt: skip
    name = CATALOGUE.key(key=hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16])
    prefix = next_folder(store, name, "-")
    try:
        expect_sound(store, prefix, read_manifest(store, prefix), turn)
        return reference(store, prefix)
    except MissingFolder:
        pass
    except CorruptFolder as error:
        print(f"{error}; the catalogue is built again", flush=True)
        prefix = next_folder(store, name, "-")
    while True:
        try:
            return _built(store, prefix, sources, bases, features, config, turn)
        except DamagedBase as error:
            print(f"{error}; the catalogue is built without {error.prefix}", flush=True)
            with contextlib.suppress(MissingFolder, CorruptFolder):
                expect_sound(store, error.prefix, read_manifest(store, error.prefix))
            bases = [base for base in bases if base.prefix != error.prefix]


def _built(
    store: Store,
    prefix: str,
    sources: Sources,
    bases: Sequence[CatalogueRef],
    features: list[str],
    config: Config,
    turn: int,
) -> CatalogueRef:
    start = _start(store, sources, bases, features, config, turn)
    kept, count = start.kept, start.partitions
    with tempfile.TemporaryDirectory(prefix="millrace-") as scratch:
        types = kept.types if kept is not None else feature_types(start.added, config)
        with connect(Path(scratch)) as database:
            database.execute("SET threads = 1")  # each thread needs own buffers, and a partition is too small to share
            lost = find_changes(database, start.versions, types, count) if start.versions else set[int]()
            queries = [records_of(source, types, count) for source in start.added]
            if start.versions:
                every = inputs_of(store, sources, None) if lost else iter(())
                queries += changed_records(start.versions, every, types, count)
            scatter(read_erased(store).without_items(_records(database, queries)), Path(scratch), count)
            target = _Target(store, prefix, Path(scratch), kept)
            entries, items, deleted = [], 0, 0
            for number in range(count):
                records = scattered(Path(scratch), number)
                if kept is not None and records is None and number not in lost:
                    entries += kept.named(number)
                    continue
                gone_ids = _lost_items(database, number, count) if number in lost else pa.array([], pa.string())
                if kept is not None:
                    delta = write_delta(database, kept, features, number, records, gone_ids, Path(scratch))
                    if delta is not None:
                        entries += _placed(target, delta)
                        items, deleted = items + delta.items, deleted + delta.deleted
                        remove(Path(scratch), number)
                        continue
                    records, live, gone = kept.merged(database, records, number, gone_ids)
                    items, deleted = items - live, deleted - gone
                for entry, live, gone in _merge(database, target, features, number, records):
                    entries.append(entry)
                    items, deleted = items + live, deleted + gone
                so_far = items + (kept.facts["items"] if kept is not None else 0)
                report("partitions of the catalogue", number + 1, count, f"{so_far:,} items")
    if kept is not None:
        items, deleted = items + kept.facts["items"], deleted + kept.facts["deleted"]
    facts = {"items": items, "deleted": deleted, "partitions": count, "features": features, "sources": sources.names}
    has_deltas = any((place_of_name(entry.name) or (0, 0))[1] for entry in entries)
    try:
        seal(store, prefix, tuple(entries), CATALOGUE_KIND, facts, version=2 if has_deltas else 1)
    except Conflict:  # another run has built it on another catalogue meanwhile: other files, the same items
        if read_manifest(store, prefix).facts != facts:
            raise
    return reference(store, prefix)


class _Start(NamedTuple):
    """The beginning of a catalogue: sources to add to `kept`, or all if None; and feeds with versions to compare."""

    added: list[Source]
    partitions: int
    kept: Kept | None
    versions: list[Versions]


def _start(
    store: Store, sources: Sources, bases: Sequence[CatalogueRef], features: list[str], config: Config, turn: int
) -> _Start:
    for base in usable(store, bases, sources, features):
        if base.replaced:
            if (start := _on_replaced(store, base, config, turn)) is not None:
                return start
            continue
        added = [*inputs_of(store, base.left, None)]
        count = _partitions(store, base.left, base.ref, config.infer.shard_rows)
        kept = Kept.open(store, base.ref, count, added, config, turn)
        return _Start(added if kept is not None else [*added, *whole(store, base.ref)], count, kept, [])
    count = _partitions(store, sources, None, config.infer.shard_rows)
    return _Start([*inputs_of(store, sources, None)], count, None, [])


def _on_replaced(store: Store, base: Base, config: Config, turn: int) -> _Start | None:
    """Return None if no partition of the base can stay."""
    try:
        versions = open_versions(store, base.replaced, feature_names(config))
    except (MissingFolder, CorruptFolder):
        return None
    added = [*inputs_of(store, base.left, None)]
    before = sum(read_fact(store, each.earlier.prefix, "rows", int) for each in base.replaced)
    now = Sources(base.left.rows, (*base.left.feeds, *(each.feed for each in base.replaced)))
    count = _partitions(store, now, base.ref, config.infer.shard_rows, before)
    if versions is None:
        return None
    kept = Kept.open(store, base.ref, count, [*added, *(each.now for each in versions)], config, turn)
    return _Start(added, count, kept, versions) if kept is not None else None


def reference(store: Store, prefix: str) -> CatalogueRef:
    """Return the reference to a catalogue of the workspace. Raises MissingFolder, CorruptFolder."""
    manifest = read_manifest(store, prefix)
    facts = manifest.facts
    return CatalogueRef(prefix=prefix, items=facts["items"], partitions=facts["partitions"], sha256=manifest.sha256)


def _partitions(store: Store, left: Sources, base: CatalogueRef | None, shard_rows: int, known: int = 0) -> int:
    """Return the number of partitions, a power of two: a partition of a smaller catalogue splits in two.

    Args:
        known: rows of `left` that are in the base already, in another version of a feed.
    """
    most = sum(rows.rows for rows in left.rows) - known
    most += sum(read_fact(store, feed.prefix, "rows", int) for feed in left.feeds)
    count = base.partitions if base else 1
    most += base.items if base else 0
    while count * shard_rows < most:
        count *= 2
    return count


def _records(database: duckdb.DuckDBPyConnection, queries: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for query in queries:
        yield from database.sql(query).to_arrow_reader(BATCH_RECORDS)


def _placed(to: _Target, delta: ItemDelta) -> list[FileEntry]:
    """Upload a delta; return the entries of its partition."""
    if delta.path is None or delta.file is None:
        return delta.below
    place(to.store, delta.path, delta.file.key(to.prefix))
    delta.path.unlink()
    return [*delta.below, delta.file]


class _Target(NamedTuple):
    store: Store
    prefix: str
    scratch: Path
    kept: Kept | None


def _merge(
    database: duckdb.DuckDBPyConnection, to: _Target, features: Sequence[str], number: int, records: pa.Table | None
) -> Iterator[tuple[FileEntry, int, int]]:
    """Write the files of a partition; yield each file's entry with its numbers of live and deleted items."""
    if records is None:  # by chance no item falls into it
        return
    live, gone = to.scratch / part_name(number), to.scratch / deleted_name(number)
    database.register(SCATTERED, records)
    rows = _split(database.sql(newest(features)).to_arrow_reader(BATCH_ITEMS), live, gone)
    database.unregister(SCATTERED)
    remove(to.scratch, number)
    for path, live_items, deleted_items in ((live, rows[0], 0), (gone, 0, rows[1])):
        if live_items + deleted_items:
            entry = FileEntry(name=path.name, bytes=path.stat().st_size, sha256=sha256_of(path))
            same = to.kept.same(entry) if to.kept is not None else None
            if same is None:
                place(to.store, path, entry.key(to.prefix))
            yield same or entry, live_items, deleted_items
        path.unlink()


def _split(reader: pa.RecordBatchReader, live: Path, gone: Path) -> tuple[int, int]:
    """Write live items, without DELETED, and deleted items, with it, to two files; return both counts."""
    schema = in_utc(reader.schema)
    kept = pa.schema([field for field in schema if field.name != DELETED])
    live_items = deleted_items = 0
    with pq.ParquetWriter(live, kept, compression="zstd") as lives, pq.ParquetWriter(gone, schema) as gones:
        for batch in reader:
            table = pa.Table.from_batches([batch]).cast(schema)
            dead = table.filter(table[DELETED])
            alive = table.filter(pc.invert(table[DELETED])).select(kept.names)
            live_items, deleted_items = live_items + alive.num_rows, deleted_items + dead.num_rows
            lives.write_table(alive)
            gones.write_table(dead)
    return live_items, deleted_items

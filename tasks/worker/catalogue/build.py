"""Builds a catalogue: every live item with its newest text and features, in partitions by item id.

DuckDB reads the sources in batches. The records are split into partitions on disk, and each partition is merged on its
own, so memory does not grow with the number of items. Partitions of an earlier catalogue to which nothing is added are
named, neither read nor written.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Store, sha256_of
from infra.store.manifest import (
    CorruptFolder,
    FileEntry,
    MissingFolder,
    check_sizes,
    open_files,
    place_beside,
    read_fact,
    read_manifest,
    seal,
)
from tasks.contracts.references import CatalogueRef, FeedRef, RowsRef
from tasks.contracts.runner import report
from tasks.contracts.workspace import CATALOGUE
from tasks.data.items import (
    CATALOGUE_KIND,
    DELETED,
    FEED_AT,
    FEED_KIND,
    UPDATED_AT,
    deleted_name,
    part_name,
)
from tasks.data.rows import ROWS_KIND, has_ids_alone
from tasks.worker.catalogue.kept import Kept, feature_names, feature_types, whole
from tasks.worker.catalogue.records import (
    SCATTERED,
    Source,
    connect,
    from_feed,
    from_rows,
    newest,
    records_of,
)
from tasks.worker.catalogue.scatter import BATCH_RECORDS, remove, scatter, scattered

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

BATCH_ITEMS = 4096
_FORMAT = 1  # part of the key: increase it if the same sources give different files


class Sources(NamedTuple):
    """The sources of a catalogue. Rows of a span and versions of a feed never change."""

    rows: tuple[RowsRef, ...]
    feeds: tuple[FeedRef, ...]

    @property
    def names(self) -> list[str]:
        return sorted(each.prefix for each in (*self.rows, *self.feeds))


def build(store: Store, sources: Sources, bases: Sequence[CatalogueRef], config: Config) -> CatalogueRef:
    """Return the catalogue of these sources; build it if the workspace lacks it.

    Args:
        bases: earlier catalogues; the first one made of a part of the sources, with the same features, is used.

    Raises:
        MissingFolder, CorruptFolder: a source is missing or damaged; names the file.
    """
    features = feature_names(config)
    key = {"format": _FORMAT, "sources": sources.names, "features": features,
           "shard_rows": config.infer.shard_rows}  # fmt: skip
    prefix = CATALOGUE.key(key=hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16])
    try:
        return reference(store, prefix)
    except MissingFolder:
        pass
    base, left = on_base(store, bases, sources, features)
    added = [*inputs_of(store, left, None)]
    count = _partitions(store, left, base, config.infer.shard_rows)
    kept = Kept.open(store, base, count, added, config) if base is not None else None
    with tempfile.TemporaryDirectory(prefix="millrace-") as scratch:
        inputs = added if kept is not None or base is None else [*added, *whole(store, base)]
        types = kept.types if kept is not None else feature_types(inputs, config)
        with connect(Path(scratch)) as database:
            database.execute("SET threads = 1")  # each thread needs own buffers, and a partition is too small to share
            scatter(_records(database, inputs, types, count), Path(scratch), count)
            target = _Target(store, prefix, Path(scratch), kept)
            entries, items, deleted = [], 0, 0
            for number in range(count):
                records = scattered(Path(scratch), number)
                if kept is not None and records is None:
                    entries += kept.named(number)
                    continue
                if kept is not None and records is not None:
                    records, live, gone = kept.merged(database, records, number)
                    items, deleted = items - live, deleted - gone
                for entry, live, gone in _merge(database, target, features, number, records):
                    entries.append(entry)
                    items, deleted = items + live, deleted + gone
                report("partitions of the catalogue", number + 1, count, f"{items:,} items")
    if kept is not None:
        items, deleted = items + kept.facts["items"], deleted + kept.facts["deleted"]
    facts = {"items": items, "deleted": deleted, "partitions": count, "features": features, "sources": sources.names}
    seal(store, prefix, tuple(entries), CATALOGUE_KIND, facts)
    return reference(store, prefix)


def reference(store: Store, prefix: str) -> CatalogueRef:
    """Return the reference to a catalogue of the workspace. Raises MissingFolder, CorruptFolder."""
    manifest = read_manifest(store, prefix)
    facts = manifest.facts
    return CatalogueRef(prefix=prefix, items=facts["items"], partitions=facts["partitions"], sha256=manifest.sha256)


def on_base(
    store: Store, bases: Sequence[CatalogueRef], sources: Sources, features: list[str]
) -> tuple[CatalogueRef | None, Sources]:
    """Return the first usable base, and the sources that it lacks."""
    for base in bases:
        try:
            facts = check_sizes(store, base.prefix).facts
        except (MissingFolder, CorruptFolder):
            continue
        there = set(facts["sources"])
        if there <= set(sources.names) and facts["features"] == features:
            rows = tuple(each for each in sources.rows if each.prefix not in there)
            feeds = tuple(each for each in sources.feeds if each.prefix not in there)
            return base, Sources(rows, feeds)
    return None, sources  # also if a source was corrected: its old version must not stay


def inputs_of(store: Store, sources: Sources, base: CatalogueRef | None) -> Iterator[Source]:
    for rows in sources.rows:
        if not has_ids_alone(store, rows):  # else its texts are the feed's, which may be newer
            yield from_rows(open_files(store, rows.prefix, ROWS_KIND))
    for feed in sources.feeds:
        yield from_feed(open_files(store, feed.prefix, FEED_KIND))
    if base is not None:
        yield from whole(store, base)


def _partitions(store: Store, left: Sources, base: CatalogueRef | None, shard_rows: int) -> int:
    """Return the number of partitions, a power of two: a partition of a smaller catalogue splits in two."""
    most = sum(rows.rows for rows in left.rows)
    most += sum(read_fact(store, feed.prefix, "rows", int) for feed in left.feeds)
    count = base.partitions if base else 1
    most += base.items if base else 0
    while count * shard_rows < most:
        count *= 2
    return count


def _records(
    database: duckdb.DuckDBPyConnection, inputs: Sequence[Source], types: dict[str, str], count: int
) -> Iterator[pa.RecordBatch]:
    for source in inputs:
        yield from database.sql(records_of(source, types, count)).to_arrow_reader(BATCH_RECORDS)


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
            yield same or place_beside(to.store, path, to.prefix, entry), live_items, deleted_items
        path.unlink()


def _split(reader: pa.RecordBatchReader, live: Path, gone: Path) -> tuple[int, int]:
    """Write live items, without DELETED, and deleted items, with it, to two files; return both counts."""
    utc = pa.timestamp("us", tz="UTC")  # DuckDB names the machine's own time zone, for the same moments
    schema = pa.schema(
        [field.with_type(utc) if field.name in (UPDATED_AT, FEED_AT) else field for field in reader.schema]
    )
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

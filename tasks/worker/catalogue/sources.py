"""The sources of a catalogue, and the earlier catalogue to build it on.

A partition of the earlier one to which nothing is added stays as it is. Another is merged with its additions, and read
alone for that.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import (
    CorruptFolder,
    FileEntry,
    Manifest,
    MissingFolder,
    check_sizes,
    expect_manifest,
    expect_sound,
    open_entry,
    open_file,
    open_files,
    read_manifest,
)
from tasks.contracts.references import CatalogueRef, FeedRef, RowsRef
from tasks.data.layers import layers_of
from tasks.data.rows import (
    CATALOGUE_KIND,
    DELETED,
    FEED_KIND,
    ITEM_ID,
    ROWS_KIND,
    deleted_name,
    has_ids_alone,
    part_name,
)
from tasks.foundation.errors import StoreError
from tasks.worker.catalogue.records import Source, from_catalogue, from_feed, from_rows, records_of

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

_KINDS = {"double": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR"}  # Arrow's name of a type -> DuckDB's


class DamagedBase(CorruptFolder):
    """An earlier catalogue lacks a file or has a damaged one: the new one can be built without it."""

    def __init__(self, prefix: str, why: StoreError) -> None:
        super().__init__(str(why))
        self.prefix = prefix


@contextlib.contextmanager
def _reading(prefix: str) -> Iterator[None]:
    try:
        yield
    except (MissingFolder, CorruptFolder) as error:
        raise DamagedBase(prefix, error) from error


class Kept(NamedTuple):
    """An earlier catalogue with as many partitions as the new one, and the same types of features."""

    store: Store
    prefix: str
    manifest: Manifest
    files: dict[str, FileEntry]  # by name
    layers: dict[int, tuple[FileEntry, ...]]  # live items, by partition
    types: dict[str, str]  # feature -> DuckDB type

    @classmethod
    def open(
        cls, store: Store, base: CatalogueRef, count: int, added: Sequence[Source], config: Config, turn: int
    ) -> Kept | None:
        """Open the earlier catalogue; None if no partition can stay as it is.

        Args:
            count: partitions of the new catalogue.
            added: sources that the earlier one lacks.
            turn: says whose bytes are compared, see `build`.

        Raises:
            DamagedBase: it is missing or damaged.
        """
        with _reading(base.prefix):
            manifest = read_manifest(store, base.prefix)
            layers = layers_of(manifest)
            live = next((each[0].name for each in layers.values()), None)
            if base.partitions != count or live is None:
                return None
            expect_sound(store, base.prefix, manifest, turn)
            path = open_file(store, base.prefix, manifest, live)
        types = feature_types([*added, *from_catalogue({live: path})], config)
        schema = pq.read_schema(path)
        if any(_KINDS.get(str(schema.field(name).type)) != kind for name, kind in types.items()):
            return None  # a feature has values of another type now, which changes the contents of all items
        return cls(store, base.prefix, manifest, {entry.name: entry for entry in manifest.files}, layers, types)

    @property
    def facts(self) -> dict[str, Any]:
        return self.manifest.facts

    @property
    def partitions(self) -> int:
        return int(self.manifest.facts["partitions"])

    def named(self, number: int) -> list[FileEntry]:
        """Return the entries of a partition, for the manifest of the new catalogue."""
        names = [part_name(number), deleted_name(number), *(each.name for each in self.layers.get(number, ())[1:])]
        return [self.files[name].named_from(self.prefix) for name in names if name in self.files]

    def paths(self, number: int) -> dict[str, Path]:
        """Return the local paths of a partition's files, by name. Raises DamagedBase: one is missing or damaged."""
        with _reading(self.prefix):
            return {entry.name: open_entry(self.store, self.prefix, entry) for entry in self.named(number)}

    def same(self, entry: FileEntry) -> FileEntry | None:
        """Return the entry of the earlier file with the name and the content of a new one; None: it is another."""
        mine = self.files.get(entry.name)
        return mine.named_from(self.prefix) if mine is not None and mine.sha256 == entry.sha256 else None

    def merged(
        self, database: duckdb.DuckDBPyConnection, added: pa.Table | None, number: int, lost: pa.Array
    ) -> tuple[pa.Table, int, int]:
        """Return the records of a partition with the added ones, and its earlier numbers of live and deleted items.

        Args:
            lost: ids of its items whose earlier records do not count.

        Raises:
            DamagedBase: the earlier partition is missing or damaged.
        """
        if not (paths := self.paths(number)):
            assert added is not None
            return added, 0, 0
        queries = (records_of(source, self.types, self.partitions) for source in from_catalogue(paths))
        earlier = database.sql(" UNION ALL ".join(queries)).to_arrow_table()
        gone = int(pc.sum(earlier[DELETED]).as_py() or 0)
        stay = earlier.filter(pc.invert(pc.is_in(earlier[ITEM_ID], value_set=lost)))
        records = stay if added is None else pa.concat_tables([stay, added.cast(stay.schema)])
        return records, earlier.num_rows - gone, gone


def whole(store: Store, base: CatalogueRef) -> Iterator[Source]:
    """Yield all items of a catalogue as sources. Raises DamagedBase."""
    with _reading(base.prefix):
        files = open_files(store, base.prefix, CATALOGUE_KIND)
        names = (entry.name for entry in read_manifest(store, base.prefix).files)
    yield from from_catalogue(dict(zip(names, files, strict=True)))


def feature_names(config: Config) -> list[str]:
    """Return the feature columns of each item."""
    features = config.features
    return list(
        dict.fromkeys([*features.numeric, *features.categorical, *([features.entity] if features.entity else [])])
    )


def feature_types(inputs: Sequence[Source], config: Config) -> dict[str, str]:
    """Return the DuckDB type of each feature; a category keeps its type if all files agree, and is text otherwise."""
    return column_types(inputs, config.features.numeric, feature_names(config))


def column_types(inputs: Sequence[Source], numeric: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the DuckDB type of each column, as `feature_types` does."""
    schemas = [pq.read_schema(path) for source in inputs for path in source.files]
    types = {name: "DOUBLE" for name in numeric if name in names}
    for name in names:
        found = {str(schema.field(name).type) for schema in schemas if name in schema.names} - {"null"}
        types.setdefault(name, _KINDS.get(next(iter(found)), "VARCHAR") if len(found) == 1 else "VARCHAR")
    return types


_VERSION = re.compile(r"items/([^/]+)/v([1-9]\d*)")


class Sources(NamedTuple):
    """The sources of a catalogue. Rows of a span and versions of a feed never change."""

    rows: tuple[RowsRef, ...]
    feeds: tuple[FeedRef, ...]

    @property
    def names(self) -> list[str]:
        return sorted(each.prefix for each in (*self.rows, *self.feeds))

    def without(self, prefixes: set[str]) -> Sources:
        """Return the sources of other folders."""
        rows = tuple(each for each in self.rows if each.prefix not in prefixes)
        return Sources(rows, tuple(each for each in self.feeds if each.prefix not in prefixes))


class Replaced(NamedTuple):
    """A version of a feed in an earlier catalogue, and the one that took its place."""

    earlier: FeedRef
    feed: FeedRef


class Base(NamedTuple):
    """A catalogue to build on: the sources to add, and the feeds that were replaced since."""

    ref: CatalogueRef
    left: Sources
    replaced: tuple[Replaced, ...]


def usable(store: Store, bases: Sequence[CatalogueRef], sources: Sources, features: list[str]) -> Iterator[Base]:
    """Yield the bases that are made of a part of the sources, or of other versions of their feeds, and lack no file.

    A base with another source is left out, also if rows were corrected: their old version must not stay. So is
    one whose manifest is not the one that its reference names.
    """
    of_name = {feed.name: feed for feed in sources.feeds}
    for ref in bases:
        try:
            manifest = check_sizes(store, ref.prefix)
            expect_manifest(store, ref.prefix, manifest, ref.sha256)
        except (MissingFolder, CorruptFolder):
            continue
        facts = manifest.facts
        there = set(facts["sources"])
        versions = [_VERSION.fullmatch(prefix) for prefix in sorted(there - set(sources.names))]
        pairs = [
            Replaced(FeedRef(name=each[1], version=int(each[2])), of_name[each[1]])
            for each in versions
            if each is not None and each[1] in of_name
        ]
        if facts["features"] == features and len(pairs) == len(versions):
            yield Base(ref, sources.without(there | {feed.prefix for _, feed in pairs}), tuple(pairs))


def on_base(
    store: Store, bases: Sequence[CatalogueRef], sources: Sources, features: list[str]
) -> tuple[CatalogueRef | None, Sources]:
    """Return the first base that is made of a part of the sources alone, and the sources that it lacks."""
    found = (base for base in usable(store, bases, sources, features) if not base.replaced)
    base = next(found, None)
    return (base.ref, base.left) if base is not None else (None, sources)


def inputs_of(store: Store, sources: Sources, base: CatalogueRef | None) -> Iterator[Source]:
    """Yield the files of all sources. Raises MissingFolder, CorruptFolder: names the file and the way out."""
    for rows in sources.rows:
        if not has_ids_alone(store, rows):  # else its texts are the feed's, which may be newer
            yield from_rows(open_files(store, rows.prefix, ROWS_KIND))
    for feed in sources.feeds:
        try:
            files = open_files(store, feed.prefix, FEED_KIND)
        except (MissingFolder, CorruptFolder) as error:
            raise type(error)(f"{error}, or ingest the feed again: millrace ingest --items") from error
        yield from_feed(files)
    if base is not None:
        yield from whole(store, base)

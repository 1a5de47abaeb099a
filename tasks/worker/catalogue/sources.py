"""The sources of a catalogue, and the earlier catalogue to build it on."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, check_sizes, expect_manifest, open_files
from tasks.contracts.references import CatalogueRef, FeedRef, RowsRef
from tasks.data.items import FEED_KIND
from tasks.data.rows import ROWS_KIND, has_ids_alone
from tasks.worker.catalogue.kept import whole
from tasks.worker.catalogue.records import Source, from_feed, from_rows

_VERSION = re.compile(r"items/([^/]+)/v([1-9]\d*)")


class Sources(NamedTuple):
    """The sources of a catalogue. Rows of a span and versions of a feed never change."""

    rows: tuple[RowsRef, ...]
    feeds: tuple[FeedRef, ...]

    @property
    def names(self) -> list[str]:
        return sorted(each.prefix for each in (*self.rows, *self.feeds))

    def without(self, prefixes: set[str]) -> "Sources":
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

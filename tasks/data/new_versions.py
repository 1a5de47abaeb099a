"""Choose the version of a span that an ingest writes: the source's rows, a merge with the version before, or none.

The source is compared with the workspace's version row by row. Rows are paired by their key: the row id, or for an
item feed the item id and the time. Several rows with the same key are paired in order.
"""

import enum
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from infra.store.base import Store, sha256_of
from infra.store.manifest import (
    MANIFEST,
    CorruptFolder,
    FileEntry,
    Manifest,
    entries_of,
    find_damage,
    open_folder,
    read_manifest,
    seal,
    set_apart,
)
from infra.store.records import holds, place
from tasks.contracts.references import FeedRef, SpanRef
from tasks.data.canonical import ITEMS, ROWS, Canonicaliser, Layout
from tasks.data.files.spelling import PLAIN, Spelling
from tasks.data.rows import CORE, ITEM_ID, OF_FEED, ROW_ID, TEXTS, TIME
from tasks.data.source_spans import BuiltSpan, Columns, ItemTexts, Spools, build_span, open_tables, row_of
from tasks.data.span_versions import latest_version
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, StoreError
from tasks.foundation.records import Record

_BATCH_ROWS = 256
_KINDS = {"double": "float64", "bool": "bool", "string": "string"}
_PLACE = {column: place for place, column in enumerate(CORE)}

# The rows of the version before come first, so their `n` are lower. `elsewhere`: the source has the item in some span.
_ROWS = "CREATE TABLE rows (n INTEGER PRIMARY KEY, is_new INTEGER, key TEXT, digest BLOB, elsewhere INTEGER)"
_ADD = "INSERT INTO rows (is_new, key, digest, elsewhere) VALUES (?, ?, ?, ?)"
# In a pair, the old row stays if both are equal, else the new row. An unpaired old row stays if no new row has its key.
_MET = """
CREATE TABLE met AS
WITH placed AS (SELECT *, row_number() OVER (PARTITION BY key, is_new ORDER BY n) AS place FROM rows),
paired AS (
    SELECT *, count(*) OVER pair = 2 AS paired, min(digest) OVER pair = max(digest) OVER pair AS alike,
        max(is_new) OVER (PARTITION BY key) AS key_is_new
    FROM placed WINDOW pair AS (PARTITION BY key, place)
)
SELECT n, is_new, elsewhere, paired, paired AND alike AS same,
    CASE WHEN is_new THEN NOT (paired AND alike) ELSE paired AND alike OR NOT key_is_new END AS stays
FROM paired ORDER BY n
"""
_COUNTS = """
SELECT count(*) FILTER (WHERE NOT is_new), count(*) FILTER (WHERE is_new AND paired AND NOT same),
    count(*) FILTER (WHERE is_new AND NOT paired), count(*) FILTER (WHERE NOT (is_new OR paired OR elsewhere)),
    count(*) FILTER (WHERE stays)
FROM met
"""


class Known(enum.Enum):
    """The treatment of a span that the workspace has with other rows."""

    replace = "replace"  # the source has the whole span
    merge = "merge"  # the source has some of its rows


class Difference(Record):
    """The difference in rows between a span of a source and its newest version in the workspace."""

    before: int = Field(description="rows of the version before")
    changed: int = Field(description="rows of the source with an id of the version before and other content")
    added: int = Field(description="rows of the source with a new id")
    gone: int = Field(description="rows of the version before that are not in the source")
    merged: int = Field(description="rows of both, merged")

    @property
    def is_none(self) -> bool:
        return not (self.changed or self.added or self.gone)


class Comparison(NamedTuple):
    """`merged` is a spool: the rows of the version before that stay, then the new rows of the source."""

    difference: Difference
    merged: Path
    columns: Columns  # the columns of `merged`


def compare(
    parts: Sequence[Path],
    spool: Path,
    columns: Columns,
    empty: Set[str],
    scratch: Path,
    merging: bool,
    by_item: bool = False,
    elsewhere: Callable[[str], bool] | None = None,
) -> Comparison:
    """Compare the rows of a spool with a version's rows, and merge them if asked; new rows win.

    Args:
        parts: the Parquet files of the version before, at least one.
        columns: the columns of the spool.
        empty: the source columns with only nulls, whose type is arbitrary.
        scratch: an empty folder for tables and `merged`.
        merging: write `merged`.
        by_item: pair rows by item and time, as in a feed; else by row id.
        elsewhere: True for an item that the source has in any span, so that its old row is not gone.
    """
    together = _together(columns, empty, parts)
    old, new = partial(_old_lines, parts, together), partial(_lines, spool)

    def identities(lines: Iterable[bytes], is_new: bool) -> Iterator[tuple[bool, str, bytes, bool]]:
        for line in lines:
            row = row_of(line, together)
            item = row[_PLACE[ITEM_ID]]
            key = f"{item}\n{row[_PLACE[TIME]]}" if by_item else str(row[_PLACE[ROW_ID]])
            if by_item:
                row[_PLACE[ROW_ID]] = None  # a hash of the record as its format writes it
            there = elsewhere is not None and not is_new and elsewhere(item)
            yield is_new, key, hashlib.blake2b(json.dumps(row).encode(), digest_size=16).digest(), there

    merged = scratch / "merged.jsonl"
    with open_tables(scratch / "rows.sqlite") as tables:
        tables.execute(_ROWS)
        tables.executemany(_ADD, identities(old(), is_new=False))
        tables.executemany(_ADD, identities(new(), is_new=True))
        tables.execute(_MET)
        before, changed, added, gone, rows = tables.execute(_COUNTS).fetchone()
        if merging:
            stay = tables.execute("SELECT stays FROM met ORDER BY rowid")
            with merged.open("wb") as target:
                for line, (stays,) in zip(itertools.chain(old(), new()), stay, strict=True):
                    target.write(line if stays else b"")
    difference = Difference(before=before, changed=changed, added=added, gone=gone, merged=rows)
    return Comparison(difference, merged, together)


def _lines(spool: Path) -> Iterator[bytes]:
    with spool.open("rb") as lines:
        yield from lines


def _old_lines(parts: Sequence[Path], columns: Columns) -> Iterator[bytes]:
    """Yield the rows of Parquet files as lines of a spool with these columns."""
    sources = {name: source for source, (name, _) in columns.items()}
    for part in parts:
        with pq.ParquetFile(part, pre_buffer=False) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                time = batch.schema.get_field_index(TIME)
                batch = batch.set_column(time, TIME, batch.column(time).cast(pa.int64()))
                for row in batch.to_pylist():
                    core: list[Any] = [row.pop(column, None) for column in CORE]  # an adopted feed has a part of them
                    others = {sources[name]: value for name, value in row.items() if value is not None}
                    yield json.dumps([*core, others], ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _together(columns: Columns, empty: Set[str], parts: Sequence[Path]) -> Columns:
    """Return the columns of both, by source column; of type string if the types differ."""
    kinds = {name: None if source in empty else kind for source, (name, kind) in columns.items()}
    for name, kind in _columns_of(parts).items():
        other = kinds.get(name)
        if other is None:
            kinds[name] = kind
        elif kind not in (None, other):
            kinds[name] = "code" if (kind, other) in (("string", "code"), ("float64", "code")) else "string"
    sources = {name: source for source, (name, _) in columns.items()}
    named = {sources.get(name, name): (name, kind or "float64") for name, kind in kinds.items()}
    return dict(sorted(named.items()))


def _columns_of(parts: Sequence[Path]) -> dict[str, str | None]:
    """Return name -> type of a span's columns that are not core columns; None if all values are null."""
    kinds: dict[str, str | None] = {}
    for part in parts:
        with pq.ParquetFile(part) as file:
            metadata = file.metadata
            for place, field in enumerate(file.schema_arrow):
                chunks = (metadata.row_group(group).column(place) for group in range(metadata.num_row_groups))
                if field.name not in CORE and any(chunk.statistics.null_count < chunk.num_values for chunk in chunks):
                    kinds[field.name] = _KINDS[str(field.type)]
                elif field.name not in CORE:
                    kinds.setdefault(field.name, None)
    return kinds


MOST_NAMED = 5
_SPELLING = "spelling"  # the fact of a manifest with the spelling options of an ingest, unless they were the default


class IngestedSpan(Record):
    """One span of the input."""

    name: str = Field(description="name of the span, for example 2026-W47")
    version: int = Field(description="version of the span")
    rows: int = Field(description="rows of this version")
    new: bool = Field(description="false: the workspace already had exactly these rows")
    mended: bool = Field(default=False, description="true: damaged files of that version were made again")
    difference: Difference | None = Field(
        default=None, description="difference to the version before; null: first version"
    )


class VersionContext(NamedTuple):
    """Context for choosing span versions: workspace, kind of source, the person's choices, folder for merged rows."""

    store: Store
    layout: Layout
    known: Known | None
    scratch: Path
    spelling: Spelling


class Version(NamedTuple):
    """A version of a span and its rows, which are written if the version is new.

    `lost`: the names of damaged files of a version that is not new; these alone are written.
    """

    span: IngestedSpan
    built: BuiltSpan
    lost: tuple[str, ...] = ()


def _new(built: BuiltSpan, number: int, difference: Difference | None = None) -> Version:
    return Version(
        IngestedSpan(name=built.name, version=number, rows=built.rows, new=True, difference=difference), built
    )


def _known(built: BuiltSpan, number: int, rows: int) -> Version:
    return Version(IngestedSpan(name=built.name, version=number, rows=rows, new=False), built)


def choose_versions(
    choice: VersionContext, built: Sequence[BuiltSpan], spools: Spools, canonicaliser: Canonicaliser, items: ItemTexts
) -> list[Version]:
    """Return a version of each span, in the same order; nothing is written to the workspace.

    Raises:
        ConfigError: the workspace has spans with other rows, and nobody chose to replace or merge; for a feed, only if
            items would be gone. Names each span with the rows of both sides, and both options.
    """
    versions: list[Version] = []
    refused: list[Version] = []
    spellings: list[Spelling] = []
    for each in built:
        latest = latest_version(choice.store, each.name, choice.layout.root)
        if latest is None:
            versions.append(_new(each, 1))
            continue
        try:
            manifest = read_manifest(choice.store, _prefix(choice.layout, each.name, latest))
        except CorruptFolder:
            versions.append(_new(each, latest + 1))  # the damaged version was lost before
            continue
        facts = manifest.facts
        if facts.get("content_sha256") == each.content_sha256:
            versions.append(_same(choice, each, latest, manifest))
            continue
        _refuse_mixed(choice, each.name, facts.get(TEXTS) == OF_FEED, canonicaliser.ids_alone)
        version = _changed(choice, each, latest, spools, canonicaliser, items)
        versions.append(version)
        difference = version.span.difference
        if choice.known is None and difference and (choice.layout is ROWS or difference.gone):
            refused.append(version)
            spellings.append(Spelling.model_validate(facts.get(_SPELLING, {})))
    if refused:
        raise ConfigError(_question(refused, choice.layout) + _other_spelling(spellings, choice.spelling))
    return versions


def _refuse_mixed(choice: VersionContext, name: str, before: bool, now: bool) -> None:
    """Refuse to merge rows of ids alone with rows that have texts."""
    if choice.known is Known.merge and before != now:
        here, there = ("ids alone", "texts") if now else ("texts", "ids alone")
        raise ConfigError(
            f"{name} has rows with {there} of items, and the source has rows with {here}; they are not merged. Give "
            "the whole span with --replace, or map the same columns as before"
        )


def commit_version(store: Store, choice: VersionContext, version: Version, ids_alone: bool = False) -> None:
    """Write a version, unless the workspace has it."""
    span, built, lost = version
    prefix = _prefix(choice.layout, span.name, span.version)
    if lost:
        set_apart(store, prefix, read_manifest(store, prefix), lost)
    for name in lost:
        place(store, built.folder / name, f"{prefix}/{name}")
    if not span.new:
        return
    facts = {
        "span": span.name,
        "version": span.version,
        "rows": built.rows,
        "columns": built.columns,
        "labels": built.labels,
        "content_sha256": built.content_sha256,
        "ingested_at": now(),
        **({TEXTS: OF_FEED} if ids_alone else {}),
    }
    if choice.spelling != PLAIN:
        facts[_SPELLING] = choice.spelling.model_dump(mode="json")
    files = _placed(store, prefix, built.folder)
    seal(store, prefix, files, choice.layout.kind, facts)
    mine = {MANIFEST, *(entry.name for entry in files)}
    left = {key: tag for key, tag in store.tags(prefix).items() if key.removeprefix(f"{prefix}/") not in mine}
    if left:  # by ingests that no longer can complete this version
        store.discard(prefix, left)


def _placed(store: Store, prefix: str, source: Path) -> tuple[FileEntry, ...]:
    """Upload the files of a version, and return their entries. A failure leaves none of them.

    Files that another ingest left there stay: it may only stand still, and yet write its manifest. One of ours of the
    same name goes beside it, in a folder that is named by its content.
    """
    before, files = store.tags(prefix), list[FileEntry]()
    try:
        for entry in entries_of(source):
            path, key = source / entry.name, f"{prefix}/{entry.name}"
            if key in before and not holds(store, key, path):
                entry = entry.model_copy(update={"name": f"{entry.sha256[:16]}/{entry.name}"})
            place(store, path, f"{prefix}/{entry.name}")
            files.append(entry)
    except BaseException:
        store.discard(prefix, {key: tag for key, tag in store.tags(prefix).items() if key not in before})
        raise
    return tuple(files)


def _same(choice: VersionContext, built: BuiltSpan, latest: int, manifest: Manifest) -> Version:
    """Return the version of these very rows. If files of it are damaged, those built now take their place.

    Another version of a library may write the same rows in other bytes: then they become the next version.
    """
    damage = find_damage(choice.store, _prefix(choice.layout, built.name, latest), manifest, manifest.files)
    lost = [entry for entry in manifest.files if entry.name in damage]
    here = [built.folder / entry.name for entry in lost]
    if any(not path.is_file() or sha256_of(path) != entry.sha256 for path, entry in zip(here, lost, strict=True)):
        return _new(built, latest + 1)
    span = IngestedSpan(name=built.name, version=latest, rows=built.rows, new=False, mended=bool(lost))
    return Version(span, built, tuple(entry.name for entry in lost))


def _changed(
    choice: VersionContext,
    built: BuiltSpan,
    latest: int,
    spools: Spools,
    canonicaliser: Canonicaliser,
    items: ItemTexts,
) -> Version:
    """Return the version after `latest`; or `latest` if its rows are equal apart from order or types."""
    scratch = choice.scratch / f"{built.name}-merged"
    scratch.mkdir()
    merging = choice.known is Known.merge
    try:
        folder, manifest = open_folder(choice.store, _prefix(choice.layout, built.name, latest), choice.layout.kind)
        compared = compare(
            [folder / entry.name for entry in manifest.files],
            spools.path(built.name),
            canonicaliser.columns(),
            canonicaliser.empty_columns(),
            scratch,
            merging,
            by_item=choice.layout is ITEMS,
            elsewhere=items.__contains__ if choice.layout is ITEMS else None,
        )
    except (CorruptFolder, pa.ArrowInvalid) as error:
        if merging:
            raise StoreError(
                f"v{latest} of {built.name} can't be read, so nothing can be merged with it: {error}; ingest the whole "
                "span with --replace"
            ) from error
        return _new(built, latest + 1)  # the damaged version was lost before
    difference = compared.difference
    if difference.is_none or (merging and not (difference.changed or difference.added)):
        shutil.rmtree(scratch)
        return _known(built, latest, difference.before)
    if merging:
        built = build_span(built.name, compared.merged, choice.scratch / f"{built.name}-both", compared.columns)
    shutil.rmtree(scratch)
    return _new(built, latest + 1, difference)


def _question(refused: Sequence[Version], layout: Layout) -> str:
    """Return the message of a refused ingest: the differences, and the option for each remedy."""
    what = "rows" if layout is ROWS else "records"
    lines = []
    for span, built, _ in refused[:MOST_NAMED]:
        difference = span.difference
        assert difference is not None
        lines.append(
            f"  {span.name}: v{span.version - 1} has {difference.before:,} {what}, the source "
            f"{built.rows:,}: {difference.changed:,} changed, {difference.added:,} new, {difference.gone:,} of "
            f"v{span.version - 1} missing; --replace gives {built.rows:,}, --merge {difference.merged:,}"
        )
    if len(refused) > MOST_NAMED:
        lines.append(f"  and {len(refused) - MOST_NAMED} more spans")
    key = "row id" if layout is ROWS else "item and time"
    return "\n".join(
        [
            f"the workspace has {'a span' if len(refused) == 1 else f'{len(refused)} spans'} of this source with other "
            f"{what}; nothing was written:",
            *lines,
            "Give the same command again with one of",
            "  --replace   the source has each of its spans completely",
            f"  --merge     the source has some of their {what}; of two with one {key} its own wins",
        ]
    )


def _other_spelling(before: Sequence[Spelling], now: Spelling) -> str:
    """Return a line about versions that were read with other options than these; empty if none was."""
    other = next((spelling for spelling in before if spelling != now), None)
    if other is None:
        return ""
    options = f"with {' '.join(other.options)}" if other.options else f"without {' '.join(now.options)}"
    return f"\nThe version before was read {options}; for the same file, give the same options"


def _prefix(layout: Layout, name: str, version: int) -> str:
    return (SpanRef if layout is ROWS else FeedRef)(name=name, version=version).prefix

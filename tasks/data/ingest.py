"""Ingest a user's files as spans: rows as `spans/<span>/v<n>/`, items of a feed as `items/<span>/v<n>/`.

Spans are immutable. The input holds each of its spans completely: other rows make a new version, the same rows change
nothing. The stage validate, not this module, judges the quality of the rows.
"""

import contextlib
import datetime as dt
import difflib
import errno
import tempfile
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path

import pyarrow as pa
from pydantic import Field

from infra.store.base import Store
from infra.store.manifest import MANIFEST, commit, read_manifest
from tasks.contracts.progress import Progress
from tasks.contracts.references import FeedRef, SpanRef
from tasks.contracts.spans import SpanKind, first_day, in_order, span_of
from tasks.data.canonical import ITEMS, ROWS, Canonicaliser, Layout
from tasks.data.row_ids import FACT, OF_KEY, OF_RECORD, ids_of_records, number_alike
from tasks.data.sources import Format, SourceReader
from tasks.data.span_versions import latest_version, list_spans
from tasks.data.spool import BuiltSpan, Spools, build_span
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, DataError, StoreError
from tasks.foundation.records import Record

ROWS_BETWEEN_REPORTS = 2000
_SYNTAX = {
    ROWS.root: "--map query=COLUMN,item=COLUMN[,id=COLUMN][,item_id=COLUMN][,label=COLUMN]",
    ITEMS.root: "--map id=COLUMN,text=COLUMN[,deleted=COLUMN]",
}


class IngestedSpan(Record):
    """One span of the input."""

    name: str
    version: int
    rows: int
    new: bool = Field(description="false where the workspace held exactly these rows already")


class IngestSummary(Record):
    """What was ingested, spans oldest first."""

    spans: tuple[IngestedSpan, ...]
    rows: int
    files: int


def parse_map(text: str, layout: Layout = ROWS) -> dict[str, str]:
    """Parse `query=text,item=product_title` into a mapping from canonical names to source columns.

    Raises:
        ConfigError: a pair is not name=column, a name appears twice, or `check_map` refuses it.
    """
    mapping: dict[str, str] = {}
    for pair in text.split(","):
        name, separator, column = (part.strip() for part in pair.partition("="))
        if not (name and separator and column):
            raise ConfigError(f"--map {text!r}: {pair!r} is not name=column; write it as {_SYNTAX[layout.root]}")
        if name in mapping:
            raise ConfigError(f"--map {text!r}: {name!r} is given twice; write it as {_SYNTAX[layout.root]}")
        mapping[name] = column
    check_map(mapping, layout)
    return mapping


def check_map(mapping: Mapping[str, str], layout: Layout) -> None:
    """Check the names. Raises ConfigError: a name is unknown, or a needed one is missing; names the way out."""
    for name in mapping:
        if name not in layout.columns:
            close = difflib.get_close_matches(name, layout.columns, n=1)
            hint = f"the nearest is {close[0]!r}" if close else f"known are {', '.join(layout.columns)}"
            raise ConfigError(f"--map: unknown name {name!r}; {hint}; write it as {_SYNTAX[layout.root]}")
    for name in layout.needed:
        if name not in mapping:
            raise ConfigError(f"--map: {name!r} is missing; write it as {_SYNTAX[layout.root]}")


def ingest(
    store: Store,
    source: Path,
    form: Format,
    time_column: str,
    span: SpanKind,
    mapping: Mapping[str, str],
    layout: Layout = ROWS,
    progress: Callable[[Progress], None] | None = None,
) -> IngestSummary:
    """Split the records of `source` into spans, and commit the new and the changed spans.

    All spans are built in a temporary folder (TMPDIR) first, so bad input changes nothing in the workspace. Memory use
    does not grow with the input. Temporary disk use grows to about twice the uncompressed input.

    Args:
        source: a file, or a folder of files.
        time_column: the source column with the time: ISO 8601, or seconds or milliseconds since 1970.
        mapping: name in `layout` -> source column.
        layout: rows of queries and items, or the items of a feed.
        progress: called regularly, first with bytes read, then with spans written.

    Raises:
        ConfigError: a wrong path or mapping, or a span kind other than the workspace's.
        DataError: an unreadable file, a missing column or a bad value; names file, row and column.
        StoreError: a disk is full; or, as Conflict, another ingest is writing.
    """
    check_map(mapping, layout)
    if layout is ROWS:
        _refuse_other_kinds(store, span)
    reader = SourceReader(source, form)
    report = progress or (lambda _: None)
    temporary = f"the temporary folder {tempfile.gettempdir()}"
    with (
        _frugal_arrow(),
        _explaining_full_disk(temporary, "free some space, or set TMPDIR to a folder on a larger disk"),
        tempfile.TemporaryDirectory(prefix="millrace-ingest-") as scratch,
    ):
        of_records = ids_of_records(store)
        canonicaliser = Canonicaliser(form, time_column, span, mapping, layout, of_records)
        built = _build(reader, Path(scratch), canonicaliser, mapping, report)
        with (
            _explaining_full_disk(f"the workspace {store.uri}", "free some space, and ingest again"),
            store.lock("ingest"),
        ):
            if layout is ROWS:
                _refuse_other_kinds(store, span)
            spans = []
            for done, built_span in enumerate(built, start=1):
                row_ids = OF_RECORD if layout is not ROWS or of_records(built_span.name) else OF_KEY
                spans.append(_commit(store, built_span, layout, row_ids))
                report(Progress(what="writing spans", done=done, total=len(built), note=built_span.name))
    return IngestSummary(spans=tuple(spans), rows=sum(each.rows for each in spans), files=len(reader.files))


def _build(
    reader: SourceReader,
    scratch: Path,
    canonicaliser: Canonicaliser,
    mapping: Mapping[str, str],
    report: Callable[[Progress], None],
) -> list[BuiltSpan]:
    """Write all spans of the input as Parquet, oldest first, in two passes: the first one finds the types."""
    what = f"reading {reader.files[0].name if len(reader.files) == 1 else f'{len(reader.files)} files'}"
    seen: set[str] = set()
    rows = 0
    with Spools(scratch) as spools:
        for record in reader:
            if record.row == 1 and reader.form is not Format.jsonl:
                _require(record.file, mapping, record.values.keys())
            seen.update(record.values)
            row = canonicaliser.convert(record)
            spools.append(row.span, row.to_line(record))
            rows += 1
            if rows % ROWS_BETWEEN_REPORTS == 0:
                report(Progress(what=what, done=reader.bytes_read, total=reader.bytes_total, note=f"{rows:,} rows"))
    report(Progress(what=what, done=reader.bytes_read, total=reader.bytes_total, note=f"{rows:,} rows"))
    _require(reader.files[0], mapping, seen)  # a JSONL record may omit nulls, so a column counts if any record has it
    built = []
    for name in in_order(list(spools.spans)):
        number_alike(spools.path(name))
        built.append(build_span(name, spools.path(name), scratch / name, canonicaliser.columns()))
        spools.path(name).unlink()
    return built


def _require(file: Path, mapping: Mapping[str, str], columns: Set[str]) -> None:
    for name, column in mapping.items():
        if column not in columns:
            there = ", ".join(sorted(columns))
            raise DataError(f"{file}: missing column {column!r}, which --map gives as {name}; the columns are {there}")


def _refuse_other_kinds(store: Store, span: SpanKind) -> None:
    """Refuse to mix span kinds: overlapping months and quarters would train on the same rows twice."""
    for ref in list_spans(store):
        start = first_day(ref.name)
        if span_of(dt.datetime(start.year, start.month, start.day), span) != ref.name:
            raise ConfigError(
                f"--span {span.value}: {store.uri} has spans of another length, such as {ref.name!r}, and rows of "
                "overlapping spans would be trained on twice; use that length, or another workspace"
            )


def _commit(store: Store, built: BuiltSpan, layout: Layout, row_ids: str) -> IngestedSpan:
    ref_type = SpanRef if layout is ROWS else FeedRef
    latest = latest_version(store, built.name, layout.root)
    if latest is not None:
        facts = read_manifest(store, ref_type(name=built.name, version=latest).prefix).facts
        if facts.get("content_sha256") == built.content_sha256:
            return IngestedSpan(name=built.name, version=latest, rows=built.rows, new=False)
    ref = ref_type(name=built.name, version=(latest or 0) + 1)
    store.delete(ref.prefix)  # what a killed ingest left there, without a manifest
    facts = {
        "span": ref.name,
        "version": ref.version,
        "rows": built.rows,
        "columns": built.columns,
        "content_sha256": built.content_sha256,
        FACT: row_ids,
        "ingested_at": now(),
    }
    try:
        commit(store, ref.prefix, built.folder, layout.kind, facts)
    except BaseException:
        if not store.exists(f"{ref.prefix}/{MANIFEST}"):
            store.delete(ref.prefix)
        raise
    return IngestedSpan(name=ref.name, version=ref.version, rows=built.rows, new=True)


@contextlib.contextmanager
def _frugal_arrow() -> Iterator[None]:
    """Use malloc: Arrow's own allocator keeps tens of megabytes of freed memory, and more for a longer input."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


@contextlib.contextmanager
def _explaining_full_disk(where: str, way_out: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(f"no space left in {where}; {way_out}") from error
        raise

"""Adopt a span that another engine wrote as Parquet into the workspace: check its files, and write the manifest.

The files stay as they are. Footers say schema, rows, nulls and times; of each file a few thousand rows are read, and
all bytes once, for their checksums. The stage validate judges every row, as after an ingest.
"""

import datetime as dt
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pydantic import Field

from infra.store.base import Store, sha256_of, wait_for_lock
from infra.store.lease import CheckedStore, convert_lost_lease
from infra.store.manifest import MANIFEST, FileEntry, seal
from tasks.contracts.references import SpanRef
from tasks.contracts.spans import first_day, kind_of, last_day
from tasks.contracts.workspace import SPAN
from tasks.data.ids import unpublishable
from tasks.data.rows import BATCH_ROWS, CORE, ITEM, ITEM_ID, LABEL, OF_FEED, ROW_ID, SPAN_KIND, TEXTS, TIME
from tasks.data.span_versions import latest_version, refuse_other_kinds
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, DataError
from tasks.foundation.records import Record

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

_SQL = {"string": "VARCHAR", "double": "DOUBLE", "bool": "BOOLEAN", str(CORE[TIME]): "TIMESTAMP WITH TIME ZONE"}
_OTHERS = ("double", "bool", "string")  # types of columns that are not core columns


class AdoptedSpan(Record):
    """A span that is complete now, with the files that another engine wrote."""

    name: str = Field(description="name of the span, for example 2026-W47")
    version: int = Field(description="version of the span")
    rows: int
    labels: int = Field(description="rows with a label")
    files: int
    bytes: int
    columns: tuple[str, ...] = Field(description="columns that are not core columns")
    ids_alone: bool = Field(description="true: no row has an item's text, which comes from the item feed")


def adopt(store: Store, place: str) -> AdoptedSpan:
    """Check the Parquet files in the folder of a new version of a span, and write its manifest.

    Args:
        place: the folder, as `spans/2026-W47/v1`, or its path or address: `s3://bucket/prefix/spans/2026-W47/v1`.

    Raises:
        ConfigError: the folder is no span of the workspace, is complete, or has another version than the next; or
            spans of another length exist.
        DataError: no file, or a file that is no Parquet or breaks the contract; names file, row and column.
        Conflict: an ingest still writes after ten minutes.
    """
    span = _span_at(store, place)
    with convert_lost_lease("adopt"), wait_for_lock(store, "ingest", logging.getLogger("millrace").warning) as lock:
        refuse_other_kinds(store, kind_of(span.name))
        _expect_next(store, span)
        parts = [_Part(store, span, key) for key in sorted(store.list(span.prefix)) if key.endswith(".parquet")]
        if not parts:
            raise DataError(f"{store.uri}/{span.prefix} has no file NAME.parquet; let the engine write there first")
        for part in parts:
            part.check(parts[0])
        facts = _facts(span, parts)
        seal(
            CheckedStore(store, lambda _: lock.confirm()),
            span.prefix,
            tuple(part.entry for part in parts),
            SPAN_KIND,
            facts,
        )
    return AdoptedSpan(
        name=span.name,
        version=span.version,
        rows=facts["rows"],
        labels=facts["labels"],
        files=len(parts),
        bytes=sum(part.entry.bytes for part in parts),
        columns=tuple(name for name in facts["columns"] if name not in CORE),
        ids_alone=TEXTS in facts,
    )


def _span_at(store: Store, place: str) -> SpanRef:
    key = place.rstrip("/").removeprefix(f"{store.uri}/")
    if "://" not in key and "://" not in store.uri and not key.startswith("spans/"):
        path, root = Path(key).resolve(), Path(store.uri).resolve()
        key = path.relative_to(root).as_posix() if path.is_relative_to(root) else key
    found = SPAN.match(f"{key}/{MANIFEST}")
    if found is None or SPAN.key(**found) != key:
        raise ConfigError(
            f"{place} is not the folder of a span in the workspace: let the engine write to "
            f"{store.uri}/spans/2026-W47/v1, or copy the files there, and adopt that folder"
        )
    first_day(found["span"])  # raises for a name of no known form
    return SpanRef(name=found["span"], version=found["version"])


def _expect_next(store: Store, span: SpanRef) -> None:
    latest = latest_version(store, span.name) or 0
    if span.version <= latest:
        raise ConfigError(
            f"{store.uri}/{span.prefix} can't be adopted: version {latest} of span {span.name} is complete, and "
            f"versions are never edited; write the rows to {span.prefix.rpartition('/')[0]}/v{latest + 1}"
        )
    if span.version != latest + 1:
        raise ConfigError(
            f"{store.uri}/{span.prefix}: the next version of span {span.name} is {latest + 1}; move the files to "
            f"{span.prefix.rpartition('/')[0]}/v{latest + 1}"
        )


def _facts(span: SpanRef, parts: "list[_Part]") -> dict[str, Any]:
    """Return the facts of a span's manifest, as an ingest writes them, without the hash of the rows."""
    rows, texts = sum(part.rows for part in parts), sum(part.filled(ITEM) for part in parts)
    return {
        "span": span.name,
        "version": span.version,
        "rows": rows,
        "columns": parts[0].schema.names,
        "labels": sum(part.filled(LABEL) for part in parts),
        "ingested_at": now(),
        **({TEXTS: OF_FEED} if rows and not texts else {}),
    }


class _Part:
    """One Parquet file of a span."""

    def __init__(self, store: Store, span: SpanRef, key: str) -> None:
        path = store.local(key)
        name = key.removeprefix(f"{span.prefix}/")
        self.where, self._span = f"{store.uri}/{key}", span
        self.entry = FileEntry(name=name, bytes=path.stat().st_size, sha256=sha256_of(path))
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{self.where} is not readable as Parquet ({error}); write it again") from error
        self.schema = self._file.schema_arrow

    @property
    def rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def filled(self, column: str) -> int:
        """Return the number of rows with a value."""
        return sum(self._filled(group, column) for group in range(self._file.num_row_groups))

    def check(self, first: "_Part") -> None:
        """Raise DataError if the file breaks the contract; `first` has the columns that all files have."""
        self._check_columns(first)
        before = 0
        for group in range(self._file.num_row_groups):
            rows = self._file.metadata.row_group(group).num_rows
            for column in (ROW_ID, TIME):
                if self._filled(group, column) < rows:
                    place = pc.index(pc.is_null(self._column(group, column)), True).as_py()
                    raise self._error(before + place, column, "is null; every row needs a value")
            self._check_times(group, before)
            if group in (0, self._file.num_row_groups - 1):
                self._check_sample(group, before)
            before += rows

    def _check_columns(self, first: "_Part") -> None:
        types = {field.name: str(field.type) for field in self.schema}
        for column, kind in CORE.items():
            if column not in types:
                raise DataError(
                    f"{self.where}: no column {column!r}; it has {', '.join(types)}. Name one so: SELECT COLUMN AS "
                    f"{column}{'; NULL::DOUBLE AS label, if rows have none' if column == LABEL else ''}"
                )
            if types[column] != str(kind):
                raise self._wrong_type(column, types[column], str(kind))
        for column, found in types.items():
            if column not in CORE and found not in _OTHERS:
                raise self._wrong_type(column, found, *_OTHERS)
        expected = {field.name: str(field.type) for field in first.schema}
        if types != expected:
            column = min(name for name, _ in types.items() ^ expected.items())
            raise DataError(
                f"{self.where}: column {column!r} is {types.get(column, 'missing')}, and in {first.where} "
                f"{expected.get(column, 'missing')}; all files of a span have the same columns"
            )

    def _wrong_type(self, column: str, found: str, *kinds: str) -> DataError:
        casts = " or ".join(f"CAST({column} AS {_SQL[kind]})" for kind in kinds)
        spark = ", and set spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS" if column == TIME else ""
        return DataError(
            f"{self.where}: column {column!r} is {found}, but must be {' or '.join(kinds)}; write {casts}{spark}"
            + ("" if column in CORE else ", or leave the column out")
        )

    def _check_times(self, group: int, before: int) -> None:
        begin, end = first_day(self._span.name), last_day(self._span.name) + dt.timedelta(days=1)
        first, last = (pa.scalar(dt.datetime(*day.timetuple()[:3], tzinfo=dt.UTC), CORE[TIME]) for day in (begin, end))
        statistics = self._statistics(group, TIME)
        if statistics is not None and statistics.has_min_max:
            low, high = (pa.scalar(_in_utc(each), CORE[TIME]) for each in (statistics.min, statistics.max))
            if pc.greater_equal(low, first).as_py() and pc.less(high, last).as_py():
                return
        times = self._column(group, TIME)
        place = pc.index(pc.and_(pc.greater_equal(times, first), pc.less(times, last)), False).as_py()
        if place >= 0:
            problem = f"is {times[place].as_py().isoformat()}, outside of span {self._span.name}"
            raise self._error(before + place, TIME, f"{problem}, in UTC; write the row into the span of its time")

    def _check_sample(self, group: int, before: int) -> None:
        texts = [name for name, kind in CORE.items() if kind == pa.string()]
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=texts):
            seen: dict[str, int] = {}
            for place, row in enumerate(self._strings(batch, before), start=before):
                if not row[ROW_ID].strip():
                    raise self._error(place, ROW_ID, "is blank; every row needs an id of its own")
                if (other := seen.setdefault(row[ROW_ID], place)) != place:
                    raise self._error(
                        place, ROW_ID, f"is {row[ROW_ID]!r}, as in row {other + 1}; every row needs an id of its own"
                    )
                if row[ITEM_ID] is not None and (problem := unpublishable(row[ITEM_ID], row[ITEM])) is not None:
                    raise self._error(place, ITEM_ID, problem)
            return

    def _strings(self, batch: pa.RecordBatch, before: int) -> Iterator[dict[str, Any]]:
        for name in batch.schema.names:
            try:
                batch[name].validate(full=True)
            except pa.ArrowInvalid as error:
                raise self._error(before, name, f"or one after it is no UTF-8 ({error}); write valid text") from error
        yield from batch.to_pylist()

    def _filled(self, group: int, column: str) -> int:
        rows, statistics = self._file.metadata.row_group(group).num_rows, self._statistics(group, column)
        if statistics is not None and statistics.has_null_count:
            return int(rows - statistics.null_count)
        return int(rows - self._column(group, column).null_count)

    def _statistics(self, group: int, column: str) -> Any:
        place = self._file.metadata.schema.names.index(column)
        return self._file.metadata.row_group(group).column(place).statistics

    def _column(self, group: int, column: str) -> pa.ChunkedArray:
        return self._file.read_row_group(group, [column])[column]

    def _error(self, place: int, column: str, problem: str) -> DataError:
        return DataError(f"{self.where} row {place + 1}: {column} {problem}")


def _in_utc(time: dt.datetime) -> dt.datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)

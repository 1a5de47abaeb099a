"""Adopt a span or a span of an item feed that another engine wrote as Parquet into the workspace.

Its files are checked and stay as they are; the manifest is written. Footers say schema, rows, nulls and times; of each
file a few thousand rows are read, and all bytes once, for their checksums. The stage validate judges every row of a
span, as after an ingest.
"""

import contextlib
import datetime as dt
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pydantic import Field

from infra.store.base import Store, sha256_of, wait_for_lock
from infra.store.lease import CheckedStore, convert_lost_lease
from infra.store.manifest import MANIFEST, FileEntry, seal
from tasks.contracts.spans import first_day, kind_of, last_day
from tasks.contracts.workspace import FEED, SPAN, Kind
from tasks.data.ids import unpublishable
from tasks.data.rows import (
    BATCH_ROWS,
    CORE,
    DELETED,
    FEED_KIND,
    ITEM,
    ITEM_ID,
    LABEL,
    OF_FEED,
    ROW_ID,
    SPAN_KIND,
    TEXTS,
    TIME,
)
from tasks.data.span_versions import latest_version, noted, refuse_other_kinds
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, DataError
from tasks.foundation.records import Record

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

_SQL = {"string": "VARCHAR", "double": "DOUBLE", "bool": "BOOLEAN", str(CORE[TIME]): "TIMESTAMP WITH TIME ZONE"}
_OTHERS = ("double", "bool", "string")  # types of columns that are not core columns


class _Contract(NamedTuple):
    """The columns of all files, those without nulls, and the column whose values are distinct, if any."""

    folder: Kind
    name: str
    core: Mapping[str, pa.DataType]
    filled: tuple[str, ...]
    distinct: str | None


_FEED_CORE = {ITEM_ID: pa.string(), ITEM: pa.string(), TIME: CORE[TIME], DELETED: pa.bool_()}
_CONTRACTS = (
    _Contract(SPAN, SPAN_KIND, CORE, (ROW_ID, TIME), ROW_ID),
    _Contract(FEED, FEED_KIND, _FEED_CORE, (ITEM_ID, TIME, DELETED), None),
)


class _Version(NamedTuple):
    """A version of a span, of rows or of an item feed."""

    contract: _Contract
    span: str
    number: int

    @property
    def prefix(self) -> str:
        return self.contract.folder.key(span=self.span, version=self.number)


class AdoptedSpan(Record):
    """A span that is complete now, with the files that another engine wrote."""

    name: str = Field(description="name of the span, for example 2026-W47")
    version: int = Field(description="version of the span")
    kind: str = Field(description="`span`, or `feed`: a span of the item feed")
    rows: int
    labels: int = Field(description="rows with a label")
    files: int
    bytes: int
    columns: tuple[str, ...] = Field(description="columns that are not core columns")
    ids_alone: bool = Field(description="true: no row has an item's text, which comes from the item feed")


def adopt(store: Store, place: str) -> AdoptedSpan:
    """Check the Parquet files in the folder of a new version of a span or of an item feed, and write its manifest.

    Args:
        place: the folder, as `spans/2026-W47/v1` or `items/2026-11/v1`, or its path or address:
            `s3://bucket/prefix/spans/2026-W47/v1`.

    Raises:
        ConfigError: the folder is no span of the workspace, is complete, or has another version than the next; or
            spans of another length exist.
        DataError: no file, or a file that is no Parquet or breaks the contract; names file, row and column.
        Conflict: an ingest still writes after ten minutes.
    """
    span = _version_at(store, place)
    of_feed = span.contract.folder is FEED
    with convert_lost_lease("adopt"), wait_for_lock(store, "ingest", logging.getLogger("millrace").warning) as lock:
        if not of_feed:
            refuse_other_kinds(store, kind_of(span.span))
        _expect_next(store, span)
        parts = [_Part(store, span, key) for key in sorted(store.list(span.prefix)) if key.endswith(".parquet")]
        if not parts:
            raise DataError(f"{store.uri}/{span.prefix} has no file NAME.parquet; let the engine write there first")
        for part in parts:
            part.check(parts[0])
        facts, held = _facts(span, parts), CheckedStore(store, lambda _: lock.confirm())
        with noted(held, {span.span: span.number}) if of_feed else contextlib.nullcontext():
            seal(held, span.prefix, tuple(part.entry for part in parts), span.contract.name, facts)
    return AdoptedSpan(
        name=span.span,
        version=span.number,
        kind=span.contract.name,
        rows=facts["rows"],
        labels=facts["labels"],
        files=len(parts),
        bytes=sum(part.entry.bytes for part in parts),
        columns=tuple(name for name in facts["columns"] if name not in span.contract.core),
        ids_alone=TEXTS in facts,
    )


def _version_at(store: Store, place: str) -> _Version:
    key = place.rstrip("/").removeprefix(f"{store.uri}/")
    if "://" not in key and "://" not in store.uri and not key.startswith(("spans/", "items/")):
        path, root = Path(key).resolve(), Path(store.uri).resolve()
        key = path.relative_to(root).as_posix() if path.is_relative_to(root) else key
    for contract in _CONTRACTS:
        found = contract.folder.match(f"{key}/{MANIFEST}")
        if found is not None and contract.folder.key(**found) == key:
            first_day(found["span"])  # raises for a name of no known form
            return _Version(contract, found["span"], found["version"])
    raise ConfigError(
        f"{place} is not the folder of a span in the workspace: let the engine write to {store.uri}/spans/2026-W47/v1, "
        f"or to {store.uri}/items/2026-11/v1 for an item feed, or copy the files there, and adopt that folder"
    )


def _expect_next(store: Store, span: _Version) -> None:
    above, latest = span.prefix.rpartition("/")[0], latest_version(store, span.span, span.prefix.partition("/")[0]) or 0
    if span.number <= latest:
        raise ConfigError(
            f"{store.uri}/{span.prefix} can't be adopted: version {latest} of {above} is complete, and "
            f"versions are never edited; write the rows to {above}/v{latest + 1}"
        )
    if span.number != latest + 1:
        raise ConfigError(
            f"{store.uri}/{span.prefix}: the next version of {above} is {latest + 1}; move the files to "
            f"{above}/v{latest + 1}"
        )


def _facts(span: _Version, parts: "list[_Part]") -> dict[str, Any]:
    """Return the facts of a version's manifest, as an ingest writes them, without the hash of the rows."""
    rows, texts = sum(part.rows for part in parts), sum(part.filled(ITEM) for part in parts)
    return {
        "span": span.span,
        "version": span.number,
        "rows": rows,
        "columns": {field.name: str(field.type) for field in parts[0].schema},
        "labels": sum(part.filled(LABEL) for part in parts) if LABEL in span.contract.core else 0,
        "ingested_at": now(),
        **({TEXTS: OF_FEED} if rows and not texts and span.contract.folder is SPAN else {}),
    }


class _Part:
    """One Parquet file of a version."""

    def __init__(self, store: Store, span: _Version, key: str) -> None:
        path = store.local(key)
        name = key.removeprefix(f"{span.prefix}/")
        self.where, self._span, self._contract = f"{store.uri}/{key}", span.span, span.contract
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
            for column in self._contract.filled:
                if self._filled(group, column) < rows:
                    place = pc.index(pc.is_null(self._column(group, column)), True).as_py()
                    raise self._error(before + place, column, "is null; every row needs a value")
            self._check_times(group, before)
            if group in (0, self._file.num_row_groups - 1):
                self._check_sample(group, before)
            before += rows

    def _check_columns(self, first: "_Part") -> None:
        types = {field.name: str(field.type) for field in self.schema}
        for column, kind in self._contract.core.items():
            if column not in types:
                raise DataError(
                    f"{self.where}: no column {column!r}; it has {', '.join(types)}. Name one so: SELECT COLUMN AS "
                    f"{column}{'; NULL::DOUBLE AS label, if rows have none' if column == LABEL else ''}"
                )
            if types[column] != str(kind):
                raise self._wrong_type(column, types[column], str(kind))
        for column, found in types.items():
            if column not in self._contract.core and found not in _OTHERS:
                raise self._wrong_type(column, found, *_OTHERS)
        expected = {field.name: str(field.type) for field in first.schema}
        if types != expected:
            column = min(name for name, _ in types.items() ^ expected.items())
            raise DataError(
                f"{self.where}: column {column!r} is {types.get(column, 'missing')}, and in {first.where} "
                f"{expected.get(column, 'missing')}; all files of a version have the same columns"
            )

    def _wrong_type(self, column: str, found: str, *kinds: str) -> DataError:
        casts = " or ".join(f"CAST({column} AS {_SQL[kind]})" for kind in kinds)
        spark = ", and set spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS" if column == TIME else ""
        return DataError(
            f"{self.where}: column {column!r} is {found}, but must be {' or '.join(kinds)}; write {casts}{spark}"
            + ("" if column in self._contract.core else ", or leave the column out")
        )

    def _check_times(self, group: int, before: int) -> None:
        begin, end = first_day(self._span), last_day(self._span) + dt.timedelta(days=1)
        first, last = (pa.scalar(dt.datetime(*day.timetuple()[:3], tzinfo=dt.UTC), CORE[TIME]) for day in (begin, end))
        statistics = self._statistics(group, TIME)
        if statistics is not None and statistics.has_min_max:
            low, high = (pa.scalar(_in_utc(each), CORE[TIME]) for each in (statistics.min, statistics.max))
            if pc.greater_equal(low, first).as_py() and pc.less(high, last).as_py():
                return
        times = self._column(group, TIME)
        place = pc.index(pc.and_(pc.greater_equal(times, first), pc.less(times, last)), False).as_py()
        if place >= 0:
            problem = f"is {times[place].as_py().isoformat()}, outside of span {self._span}"
            raise self._error(before + place, TIME, f"{problem}, in UTC; write the row into the span of its time")

    def _check_sample(self, group: int, before: int) -> None:
        texts = [name for name, kind in self._contract.core.items() if kind == pa.string()]
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=texts):
            seen: dict[str, int] = {}
            for place, row in enumerate(self._strings(batch, before), start=before):
                if (column := self._contract.distinct) is not None:
                    self._check_distinct(row[column], column, place, seen)
                if row[ITEM_ID] is not None and (problem := unpublishable(row[ITEM_ID], row[ITEM])) is not None:
                    raise self._error(place, ITEM_ID, problem)
            return

    def _check_distinct(self, value: str, column: str, place: int, seen: dict[str, int]) -> None:
        if not value.strip():
            raise self._error(place, column, "is blank; every row needs an id of its own")
        if (other := seen.setdefault(value, place)) != place:
            raise self._error(place, column, f"is {value!r}, as in row {other + 1}; every row needs an id of its own")

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

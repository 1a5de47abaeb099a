"""Rows of earlier spans that wait for their items: a run takes the rows whose item the feed knows by now.

Each run passes on the rows that still wait, with its own rows of unknown items. So the next run of the lineage, or of a
branch, finds all of them in the run that made its parent checkpoint.
"""

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.manifest import commit_by_content, open_folder
from tasks.contracts.profiles import INGESTED_IN, WAITING_KIND
from tasks.contracts.references import FeedRef, SpanRef
from tasks.contracts.spans import first_day
from tasks.contracts.workspace import WAITING_ROWS
from tasks.data.rows import BATCH_ROWS, CORE, TIME
from tasks.worker.catalogue.item_texts import with_texts
from tasks.worker.process.job import Job

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

WAIT_DAYS = 90  # before the first span of a window; older rows don't wait any longer


class LateRows(NamedTuple):
    """Local files of rows of earlier spans: of items that the feed knows now, and of others; None: no such rows."""

    known: Path | None
    unknown: Path | None

    @property
    def rows(self) -> int:
        """The number of rows whose items the feed knows now."""
        return pq.read_metadata(self.known).num_rows if self.known is not None else 0


def look_up(job: Job, folder: str, texts: Sequence[FeedRef], scratch: Path) -> LateRows:
    """Look up the items of the rows in `folder`, as `with_texts` does; raises as it does."""
    local, manifest = open_folder(job.store, folder, WAITING_KIND)
    scratch.mkdir(parents=True)
    found = with_texts(job.store, [local / each.name for each in manifest.files], texts, job.config, scratch)
    return LateRows(found.known, found.unknown)


def late_tables(late: LateRows, like: pa.Schema) -> Iterator[tuple[SpanRef, pa.Table]]:
    """Yield the rows of known items with their spans, and with the columns of another span's rows."""
    if late.known is None:
        return
    with pq.ParquetFile(late.known, pre_buffer=False) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            table = pa.Table.from_batches([batch])
            for prefix in table[INGESTED_IN].unique().to_pylist():
                _, name, version = prefix.split("/")
                rows = table.filter(pc.equal(table[INGESTED_IN], prefix))
                yield SpanRef(name=name, version=int(version.removeprefix("v"))), _with_columns(rows, like)


def write_waiting(
    job: Job, window: Sequence[SpanRef], own: Iterable[tuple[SpanRef, Path]], late: LateRows, scratch: Path
) -> str | None:
    """Write the rows whose items are unknown still; return the key of their folder, None if no row waits.

    Args:
        own: the files of unknown items of the window's spans.
    """
    sources: list[tuple[str | None, Path]] = [(None, late.unknown)] if late.unknown is not None else []
    sources += [(span.prefix, path) for span, path in own]
    since = dt.datetime.combine(first_day(window[0].name), dt.time(), dt.UTC) - dt.timedelta(days=WAIT_DAYS)
    schema = _united([pq.read_schema(path) for _, path in sources])
    scratch.mkdir(parents=True)
    rows = 0
    with contextlib.ExitStack() as opened:
        writer = opened.enter_context(pq.ParquetWriter(scratch / "part-00000.parquet", schema))
        for prefix, path in sources:
            with pq.ParquetFile(path, pre_buffer=False) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    table = pa.Table.from_batches([batch])
                    if prefix is not None:
                        table = table.append_column(INGESTED_IN, pa.array([prefix] * len(table), pa.string()))
                    table = table.filter(pc.fill_null(pc.greater_equal(table[TIME], since), False))
                    writer.write_table(_with_columns(table, schema))
                    rows += len(table)
    if not rows:
        return None
    where = WAITING_ROWS.of(job.spec, folder=window[-1].name)
    return commit_by_content(job.store, where, scratch, WAITING_KIND, {"rows": rows})


def _united(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of all schemas; text if the types of a column differ."""
    kinds: dict[str, set[pa.DataType]] = {}
    for schema in schemas:
        for column in schema:
            kinds.setdefault(column.name, set()).add(column.type)
    kinds = {INGESTED_IN: {pa.string()}} | kinds
    return pa.schema(
        [
            (name, CORE.get(name) or (next(iter(kind)) if len(kind) == 1 else pa.string()))
            for name, kind in kinds.items()
        ]
    )


def _with_columns(table: pa.Table, like: pa.Schema) -> pa.Table:
    """Return the rows with the columns of a schema; null for a missing column, and for values of another type."""
    columns = []
    for column in like:
        values = pa.nulls(len(table), column.type)
        if column.name in table.column_names:
            try:
                values = table[column.name].cast(column.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                print(
                    f"warning: column {column.name!r} of {len(table)} rows that waited for their items is not "
                    f"{column.type}, as it is now ({error}); they have no value in it",
                    flush=True,
                )
        columns.append(values)
    return pa.table(columns, schema=like.remove_metadata())

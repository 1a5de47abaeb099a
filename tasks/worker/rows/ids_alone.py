"""Rows that name their items by id alone: their texts from the item feed, and the rows that wait for their items.

Each row takes the newest record of its item that has a text. DuckDB looks up only the items of the log; the rows pass
through memory in batches, in their order.

Each run passes on the rows that still wait, with its own rows of unknown items. So the next run of the lineage, or of a
branch, finds all of them in the run that made its parent checkpoint.
"""

import contextlib
import datetime as dt
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import commit_by_content, open_folder
from tasks.contracts.outcomes import Check
from tasks.contracts.profiles import INGESTED_IN, WAITING_KIND
from tasks.contracts.references import FeedRef, HoldoutRule, SpanRef
from tasks.contracts.spans import first_day
from tasks.contracts.workspace import WAITING_ROWS
from tasks.data.label_columns import own_label_columns
from tasks.data.rows import BATCH_ROWS, CORE, DELETED, FEED_AT, ITEM, ITEM_ID, TEXT, TIME, UPDATED_AT, group_columns
from tasks.foundation.nouns import plural
from tasks.worker.catalogue.records import Source, connect, literal, quoted, records_of
from tasks.worker.catalogue.sources import Sources, column_types, feature_names, inputs_of
from tasks.worker.process.job import Job
from tasks.worker.rows.row_checks import ParquetPart
from tasks.worker.rows.window import WindowCounts

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

JOINED_ROWS = 50_000  # rows in memory
_TEXTS = "item_texts"  # the table of the newest records
_PLACE = "place_of_row"
_GONE = "is_gone"  # true: the feed's newest record of the item deletes it


class Filled(NamedTuple):
    """Local Parquet files: `known` has rows with texts, and rows without an id; `unknown` the others, as they came."""

    known: Path
    unknown: Path | None  # None: the feed has the text of every row's item
    deleted: frozenset[str] = frozenset()  # ids in `unknown` that the feed knows as deleted alone, without a text
    rows_deleted: int = 0  # rows of `known` whose item the feed's newest record calls deleted


def with_texts(store: Store, files: Sequence[Path], feeds: Sequence[FeedRef], config: Config, folder: Path) -> Filled:
    """Write the rows of a log with the texts, and the columns in use, of their items.

    A feature comes from the feed if it has the column, unless the feature is one of queries, or the entity, and the log
    has the column. Other columns in use come from the feed if the log lacks them.

    Args:
        files: the Parquet files of the log; `folder` gets the new ones.

    Raises:
        MissingFolder, CorruptFolder: a feed is missing or damaged; names the file.
    """
    sources = [*inputs_of(store, Sources((), tuple(feeds)), None)]
    schema = pa.unify_schemas([pq.read_schema(path).remove_metadata() for path in files], promote_options="permissive")
    names = _taken_columns(sources, schema.names, config)
    known, unknown = folder / "known.parquet", folder / "unknown.parquet"
    with (
        tempfile.TemporaryDirectory(prefix="millrace-") as scratch,
        connect(Path(scratch)) as database,
        contextlib.ExitStack() as opened,
    ):
        _find_texts(database, files, sources, column_types(sources, config.features.numeric, names))
        writers: dict[Path, pq.ParquetWriter] = {}
        rows_deleted = 0
        for table in _batches(files, schema):
            filled, deleted = _joined(database, table, names)
            rows_deleted += deleted
            apart = pc.and_(filled[ITEM].is_null(), pc.not_equal(pc.utf8_trim_whitespace(table[ITEM_ID]), ""))
            apart = pc.fill_null(apart, False)
            for path, rows in ((known, filled.filter(pc.invert(apart))), (unknown, table.filter(apart))):
                if path not in writers and (path == known or len(rows)):
                    writers[path] = opened.enter_context(pq.ParquetWriter(path, rows.schema))
                if len(rows):
                    writers[path].write_table(rows)
        without = database.sql(f"SELECT {ITEM_ID} FROM {_TEXTS} WHERE {TEXT} IS NULL").fetchall()
    apart = unknown if unknown.exists() else None
    return Filled(known, apart, frozenset(each for (each,) in without), rows_deleted)


def _taken_columns(sources: Sequence[Source], own: Sequence[str], config: Config) -> list[str]:
    """Return the columns that rows take from the feed."""
    there = {name for source in sources for name in pq.read_schema(source.files[0]).names}
    features = feature_names(config)
    of_queries = {*config.features.query, config.features.entity}
    in_use = [
        *features,
        *config.evaluate.slices,
        *own_label_columns(config),
        *group_columns(HoldoutRule.of(config.evaluate).group),
    ]
    return [
        name
        for name in dict.fromkeys(in_use)
        if name in there and name not in CORE and (name not in own or (name in features and name not in of_queries))
    ]


def _find_texts(
    database: duckdb.DuckDBPyConnection, files: Sequence[Path], sources: Sequence[Source], types: dict[str, str]
) -> None:
    """Make the table of the newest record of each item of the log: the latest by time, then by text and features.

    An item that the feed knows without any text is in it too.
    """
    columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in types.items())
    if not sources:
        database.execute(
            f"CREATE TABLE {_TEXTS} ({ITEM_ID} VARCHAR, {_GONE} BOOLEAN, {TEXT} VARCHAR{', ' * bool(types)}{columns})"
        )
        return
    records = " UNION ALL ".join(f"({records_of(source, types, 1)})" for source in sources)
    parts = ", ".join(quoted(each) for each in (UPDATED_AT, TEXT, *types))
    newest = ", ".join(f"newest.{quoted(name)} AS {quoted(name)}" for name in (TEXT, *types))  # null without a text
    log = ", ".join(literal(str(path)) for path in files)
    database.execute(f"""
        CREATE TABLE {_TEXTS} AS SELECT {ITEM_ID}, {_GONE}, {newest} FROM (
            SELECT {ITEM_ID},
                max(struct_pack({FEED_AT}, {DELETED})).{DELETED} AS {_GONE},
                max(struct_pack({parts})) FILTER ({TEXT} IS NOT NULL) AS newest
            FROM ({records})
            WHERE {ITEM_ID} IN (SELECT {ITEM_ID} FROM read_parquet([{log}]))
            GROUP BY {ITEM_ID}
        )
    """)


def _batches(files: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield all rows in order, in tables of one schema; one empty table if no row exists."""
    rows = 0
    for path in files:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(JOINED_ROWS):
                table = pa.Table.from_batches([batch]).replace_schema_metadata(None)
                yield pa.concat_tables([schema.empty_table(), table], promote_options="permissive")
                rows += len(table)
    if not rows:
        yield schema.empty_table()


def _joined(database: duckdb.DuckDBPyConnection, table: pa.Table, names: Sequence[str]) -> tuple[pa.Table, int]:
    """Return the rows with the texts and columns of their items, null for an unknown item.

    The number is of the rows of deleted items with a text.
    """
    database.register(
        "some_rows", table.select([ITEM_ID]).append_column(_PLACE, pa.array(range(len(table)), pa.int64()))
    )
    columns = ", ".join(f"{_TEXTS}.{quoted(name)}" for name in (TEXT, *names))
    gone = f"coalesce({_GONE} AND {TEXT} IS NOT NULL, false) AS {_GONE}"
    found = database.sql(
        f"SELECT {columns}, {gone} FROM some_rows LEFT JOIN {_TEXTS} USING ({ITEM_ID}) ORDER BY {_PLACE}"
    ).to_arrow_table()
    database.unregister("some_rows")
    table = table.set_column(table.schema.get_field_index(ITEM), ITEM, found[TEXT].cast(pa.string()))
    for name in names:
        place = table.schema.get_field_index(name)
        table = table.append_column(name, found[name]) if place < 0 else table.set_column(place, name, found[name])
    return table, pc.sum(found[_GONE]).as_py() or 0


UNKNOWN_ITEM = "unknown item"
NO_TEXT = "deleted item without a text"
_SHOWN = 3  # ids in a sentence


class FilledSpan(NamedTuple):
    """A span's rows with texts filled in; `unknown` has the rows of items whose text the feed lacks."""

    parts: list[ParquetPart]
    unknown: Path | None
    deleted: frozenset[str] = frozenset()  # ids in `unknown` that the feed knows as deleted alone
    rows_deleted: int = 0  # rows with a text whose item is deleted now


def fill_span(
    store: Store, span: SpanRef, parts: Sequence[ParquetPart], feeds: Sequence[FeedRef], config: Config, folder: Path
) -> FilledSpan:
    """Return a span of ids alone with texts from the feed, in files of `folder`. Raises as `with_texts`."""
    folder.mkdir(parents=True)
    found = with_texts(store, [part.path for part in parts], feeds, config, folder)
    part = ParquetPart(span, found.known, pq.read_schema(found.known))
    return FilledSpan([part], found.unknown, found.deleted, found.rows_deleted)


def set_unknown_apart(counts: WindowCounts, span: SpanRef, filled: FilledSpan) -> int:
    """Count the rows of items without a text, by the reason; return their number."""
    if filled.unknown is None:
        return 0
    rows = pq.read_table(filled.unknown)
    deleted = pc.is_in(rows[ITEM_ID], value_set=pa.array(filled.deleted, pa.string()))
    for some, reason in ((rows.filter(pc.invert(deleted)), UNKNOWN_ITEM), (rows.filter(deleted), NO_TEXT)):
        if len(some):
            counts.set_apart(span, some, reason)
    return len(rows)


def unknown_items(counts: WindowCounts, feeds: Sequence[FeedRef], late: int, deleted: int) -> Check:
    """Return the check that the feed knows the items of all rows.

    Args:
        late: rows of earlier spans whose items the feed knows since.
        deleted: rows whose items the feed knows, as deleted now.
    """
    unknown, textless, total = counts.reasons[UNKNOWN_ITEM], counts.reasons[NO_TEXT], counts.rows_in
    apart = unknown + textless
    known = f"The item feed ({_newest(feeds)}) knows the items of"
    gone = f" ({deleted} of them about deleted items)" if deleted else ""
    sentence = f"{known} all rows{gone}."
    if apart:
        sentence = f"{known} {total - apart} of {plural(total, 'row')} ({(total - apart) / total:.2%}){gone}."
        if unknown:
            sentence += f" It lacks the items of {plural(unknown, 'row')}, such as {_ids(counts, UNKNOWN_ITEM)}."
        if textless:
            sentence += f" It has those of {textless} as deleted alone, without a text, as {_ids(counts, NO_TEXT)}."
        sentence += " These rows are set apart, and later runs look for their items."
    if late:
        sentence += f" Rows of earlier spans that came in, since the feed knows their items now: {late}."
    return Check(
        name="items in the feed", passed=not apart, severity="warning", observed=float(apart), sentence=sentence
    )


def way_out(counts: WindowCounts, feeds: Sequence[FeedRef]) -> str:
    """Return the end of a sentence about too many bad rows, if some are about unknown items."""
    unknown, deleted = counts.reasons[UNKNOWN_ITEM], counts.reasons[NO_TEXT]
    sentence = ""
    if unknown:
        sentence = (
            f" The item feed ({_newest(feeds)}) does not know the items of {unknown} of them, such as "
            f"{_ids(counts, UNKNOWN_ITEM)}: ingest their records with millrace ingest --items, and run again. Are the "
            "ids of log and feed written alike?"
        )
    if deleted:
        sentence += (
            f" {deleted} of them are about items that the feed has as deleted alone, without a text, such as "
            f"{_ids(counts, NO_TEXT)}: ingest a record of each with its text, of a time before its deletion."
        )
    return sentence


def _ids(counts: WindowCounts, reason: str) -> str:
    """Return a few ids of the items that rows were set apart for."""
    values = (sample.values[ITEM_ID] for sample in counts.samples if sample.reason == reason)
    return ", ".join([repr(each) for each in dict.fromkeys(values)][:_SHOWN])


def _newest(feeds: Sequence[FeedRef]) -> str:
    return f"newest span: {feeds[-1].name} v{feeds[-1].version}" if feeds else "empty"


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

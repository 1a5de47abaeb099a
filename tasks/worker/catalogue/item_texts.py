"""Texts and features of the rows of a log of ids, from the item feed.

Each row takes the newest record of its item that has a text. DuckDB looks up only the items of the log; the rows pass
through memory in batches, in their order.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.references import FeedRef
from tasks.data.items import DELETED, FEED_AT, TEXT, UPDATED_AT
from tasks.data.label_columns import own_label_columns
from tasks.data.rows import CORE, ITEM, ITEM_ID, group_columns
from tasks.worker.catalogue.kept import column_types, feature_names
from tasks.worker.catalogue.records import Source, connect, literal, quoted, records_of
from tasks.worker.catalogue.sources import Sources, inputs_of

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

"""Write the holdout of a span once, so that no later stage reads all rows to find it.

Beside it are the query-item pairs of all rows of the span, from which an evaluation finds other relevant items, and
hashes of the texts of its training rows. DuckDB sorts in bounded memory.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import commit_by_content
from tasks.contracts.checkpoints import QUERY_AND_ITEM, HoldoutRule
from tasks.contracts.references import RowsRef
from tasks.data.holdout import left_out_ids, split_holdout
from tasks.data.rows import ITEM_ID, LABEL, QUERY, group_hashes, hold_places, other_columns, read_rows
from tasks.worker.catalogue.records import connect, literal
from tasks.worker.model.relevant import hash_queries
from tasks.worker.rows.holdout_order import files_of, first_places, query_places

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

HELD_KIND = "held"
ROWS, PAIRS = "rows", "pairs"  # prefixes of file names
TRAINED = "trained.parquet"  # distinct TEXTS_HASH of the training rows
# Columns added to the held-out rows:
QUERY_PLACE = "(query place)"  # uint64, from `query_places`; the rows are sorted by it
HOLD_PLACE = "(hold place)"  # uint64, from `hold_places`: the row is held out while this is below the share
NUMBER = "(number)"  # int64: number of the row in its span
# The pairs have QUERY_PLACE, ITEM_ID, LABEL, and
TRAINED_ON = "(trained on)"  # bool: a training row of the span has the pair
# Column of the training rows:
TEXTS_HASH = "(texts hash)"  # uint64: the group hash of the group QUERY_AND_ITEM

_AT_ONCE = 8192  # rows in memory and at most in a row group; fixed, so that the same rows give the same files


def write_held(
    store: Store, ref: RowsRef, rule: HoldoutRule, prefix: str, scratch: Path, kept_out: str | None = None
) -> RowsRef:
    """Write the holdout folder of a span; return the reference with its key.

    Args:
        ref: with its `sides`, if the span was compared with others.
        prefix: start of the folder's key; a hash of the files follows.
        scratch: a local folder for temporary files.
        kept_out: key of the golden set whose texts no training row has, if any.

    Raises:
        MissingFolder, CorruptFolder: the rows or their `sides` are missing or damaged.
    """
    drafts, folder = scratch / f"{ref.span.name}.held-drafts", scratch / f"{ref.span.name}.held"
    for made in (drafts, folder):
        made.mkdir(parents=True)
    held, pairs, trained = _draft(store, ref, rule, drafts)
    with connect(scratch) as database:
        by_place = f"{_name(QUERY_PLACE)}, {_name(NUMBER)}"
        rows_in = _write(database, f"SELECT * FROM {_of(held)}", by_place, held, folder, ROWS)
        names = ", ".join(_name(name) for name in (QUERY_PLACE, ITEM_ID, LABEL))
        trained_on = f"bool_or({_name(TRAINED_ON)}) AS {_name(TRAINED_ON)}"
        distinct = f"SELECT {names}, {trained_on} FROM {_of(pairs)} GROUP BY {names}"
        pairs_in = _write(database, distinct, names, pairs, folder, PAIRS)
        hashes = _name(TEXTS_HASH)
        distinct = f"SELECT DISTINCT {hashes} FROM {_of(trained)} ORDER BY {hashes}"
        with pq.ParquetWriter(folder / TRAINED, pq.read_schema(trained)) as writer:
            for table in _tables(database, distinct, writer.schema):
                writer.write_table(table)
    facts = {
        "span": ref.span.name,
        "share": rule.measured,
        "kept_out": kept_out,
        "rows_in": rows_in,
        "pairs_in": pairs_in,
    }
    (folder / "facts.json").write_text(
        json.dumps(facts), encoding="utf-8"
    )  # so that different facts give a different folder
    return ref.model_copy(update={"held": commit_by_content(store, prefix, folder, HELD_KIND, facts)})


def file_name(what: str, number: int) -> str:
    """Return the name of a file, e.g. `rows-03.parquet`; `number` is in the order of places."""
    return f"{what}-{number:02d}.parquet"


def _draft(store: Store, ref: RowsRef, rule: HoldoutRule, folder: Path) -> list[Path]:
    """Write the held-out rows with their places, the pairs of all rows, and the texts of the training rows."""
    left_out, number = left_out_ids(store, ref), 0
    paths = [folder / name for name in ("rows.parquet", "pairs.parquet", TRAINED)]
    writers: list[pq.ParquetWriter] = []
    try:
        for rows in read_rows(store, [ref], other_columns(store, ref)):
            added = {
                QUERY_PLACE: query_places(hash_queries(rows[QUERY].to_pylist())),
                HOLD_PLACE: hold_places(rows, rule.group),
                TEXTS_HASH: group_hashes(rows, QUERY_AND_ITEM),
                NUMBER: np.arange(number, number + rows.num_rows),
            }
            number += rows.num_rows
            placed = rows
            for name, values in added.items():
                placed = placed.append_column(name, pa.array(values))
            training, held = split_holdout(placed, rule, left_out)
            trained = pc.is_in(placed[NUMBER], value_set=training[NUMBER].combine_chunks())
            pairs = placed.select([QUERY_PLACE, ITEM_ID, LABEL]).append_column(TRAINED_ON, trained)
            tables = held.drop_columns(TEXTS_HASH), pairs, training.select([TEXTS_HASH])
            writers = writers or [
                pq.ParquetWriter(path, table.schema) for path, table in zip(paths, tables, strict=True)
            ]
            for writer, table in zip(writers, tables, strict=True):
                writer.write_table(table)
    finally:
        for writer in writers:
            writer.close()
    return paths


def _write(
    database: duckdb.DuckDBPyConnection, query: str, order: str, draft: Path, folder: Path, what: str
) -> list[int]:
    """Write the rows of a query into files by their places; return the number of rows of each file."""
    ((rows,),) = database.sql(f"SELECT count(*) FROM ({query})").fetchall()
    schema, counts = pq.read_schema(draft), [0] * len(first_places(rows))
    writers = [pq.ParquetWriter(folder / file_name(what, number), schema) for number in range(len(counts))]
    try:
        for table in _tables(database, f"{query} ORDER BY {order}", schema):
            files = files_of(table[QUERY_PLACE].to_numpy(), rows)
            for number in np.unique(files):
                part = table.filter(pa.array(files == number))
                writers[number].write_table(part)
                counts[number] += part.num_rows
    finally:
        for writer in writers:
            writer.close()
    return counts


def _tables(database: duckdb.DuckDBPyConnection, sorted_rows: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a query, _AT_ONCE at a time, because DuckDB's batch sizes depend on its threads."""
    waiting = schema.empty_table()
    for batch in database.sql(sorted_rows).to_arrow_reader(_AT_ONCE):
        waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch]).cast(schema)])
        while waiting.num_rows >= _AT_ONCE:
            yield waiting.slice(0, _AT_ONCE)
            waiting = waiting.slice(_AT_ONCE)
    yield waiting


def _of(path: Path) -> str:
    return f"read_parquet({literal(str(path))})"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'

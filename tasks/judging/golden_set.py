"""The golden set: queries with their right items, from a user's file, on which every release is measured.

The machine that starts a run reads and checks the file, and stores it in the workspace under a hash of its content. So
the workers on any machine have it, and a changed file is another golden set.
"""

import hashlib
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.records import settle
from tasks.contracts.workspace import GOLDEN
from tasks.data.erased import read_erased
from tasks.data.files.formats import SUFFIXES, Format, format_of_name
from tasks.data.files.names import named_like
from tasks.data.files.readers import SourceRow
from tasks.data.files.sources import SourceReader, source_path
from tasks.data.files.values import NUMBER, as_text
from tasks.data.ids import hash_of, id_of, scalar_of
from tasks.data.rows import (
    ITEM,
    ITEM_ID,
    LABEL,
    QUERY,
    ROW_ID,
)
from tasks.foundation.errors import ConfigError, DataError

_FORMATS = {Format.csv: "csv", Format.jsonl: "json", Format.parquet: "parquet"}  # -> their names in DuckDB
MOST_ROWS = 10_000  # all its items are in memory, next to the holdout's items

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


class GoldenRow(NamedTuple):
    """A query, the text of its right item, and the item's id."""

    query: str
    item: str
    item_id: str


def store_golden_set(store: Store, file: str) -> str:
    """Return the key of the golden set of a file: Parquet with ROW_ID, QUERY, ITEM and ITEM_ID, all string.

    Raises:
        ConfigError: the file doesn't exist, or has an unknown format.
        DataError: the file is damaged, lacks a column, has an empty text, an item with two texts, or too many rows.
    """
    erased = read_erased(store)
    rows = [row for row in read_golden_set(source_path(file)) if not (erased and erased.any_of(row._asdict()))]
    key = GOLDEN.key(key=hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16])
    if not store.exists(key):
        columns = {
            ROW_ID: [f"golden-{number:05d}" for number in range(1, len(rows) + 1)],
            QUERY: [row.query for row in rows],
            ITEM: [row.item for row in rows],
            ITEM_ID: [row.item_id for row in rows],
        }
        out = io.BytesIO()
        pq.write_table(pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()}), out)
        settle(store, key, out.getvalue())
    return key


def read_golden_set(file: PurePath) -> list[GoldenRow]:
    """Return the rows of a file, each pair once, in their order. Raises as `store_golden_set` does."""
    if isinstance(file, Path) and not file.is_file():
        raise ConfigError(f"evaluate.golden: there is no file {file.absolute()} on this machine")
    form = format_of_name(file.name)
    if form not in _FORMATS:
        known = ", ".join(suffix for each in _FORMATS for suffix in SUFFIXES[each])
        raise ConfigError(f"evaluate.golden: {file} is none of {known}; save it as one of these")
    rows = list(dict.fromkeys(_rows(SourceReader(file, form))))
    texts: dict[str, str] = {}
    for row in rows:
        if texts.setdefault(row.item_id, row.item) != row.item:
            raise DataError(f"{file}: item {row.item_id!r} has two texts, {texts[row.item_id]!r} and {row.item!r}")
    return rows


def _rows(reader: SourceReader) -> Iterator[GoldenRow]:
    records = list(itertools.islice(reader, MOST_ROWS + 1))
    if len(records) > MOST_ROWS:
        raise DataError(f"{records[0].file} has more than {MOST_ROWS:,} rows, the most that a golden set may have")
    _refuse_grades(records, reader.form)
    has_ids = any(ITEM_ID in record.values for record in records)  # a record of JSON may leave out nulls
    for record in records:
        query, item = _text(record, QUERY), _text(record, ITEM)
        yield GoldenRow(query, item, _id(record, reader.form) if has_ids else hash_of(item))


def _refuse_grades(records: Sequence[SourceRow], form: Format) -> None:
    """Refuse a file whose rows are judged good and bad: each would count as a right answer."""
    for column in dict.fromkeys(name for record in records for name in record.values):
        if column in (QUERY, ITEM, ITEM_ID) or not named_like(column, LABEL):
            continue
        values = [scalar_of(record, column) for record in records]
        grades = sorted({as_text(value).strip() for value in values if value is not None})
        if len(grades) > 1:
            file, best = records[0].file, grades[-1]
            good = f"{column} >= {best}" if NUMBER.fullmatch(best) else f"{column} = '{best}'"
            reading = _FORMATS[form]
            kept = f"read_{reading}('{file}').filter(\"{good}\").project('* EXCLUDE {column}').write_csv('right.csv')"
            raise DataError(
                f"{file}: column {column!r} has values from {grades[0]!r} to {best!r}, and each row of a golden set is "
                "a right answer, so that bad grades would count as right. Keep the rows of good grades, without the "
                f"column, and name the new file in evaluate.golden; in Python: import duckdb; duckdb.{kept}"
            )


def _id(record: SourceRow, form: Format) -> str:
    found = id_of(record, ITEM_ID, scalar_of(record, ITEM_ID), form.texts_are_values)
    if found is None:
        raise record.error(ITEM_ID, "no id; give every row its item's id, or leave the column out")
    return found


def _text(record: SourceRow, column: str) -> str:
    if column not in record.values:
        raise record.error(column, f"missing; a golden set has query, item, and perhaps item_id, "
                                   f"this has {', '.join(record.values)}")  # fmt: skip
    text = scalar_of(record, column)
    if not isinstance(text, str):
        raise record.error(column, "empty, or no text; every row of a golden set needs its query and its item")
    return text

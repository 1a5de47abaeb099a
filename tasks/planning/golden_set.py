"""The golden set: queries with their right items, from a user's file, on which every release is measured.

The machine that starts a run reads and checks the file, and stores it in the workspace under a hash of its content. So
the workers on any machine have it, and a changed file is another golden set.
"""

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from tasks.contracts.workspace import GOLDEN
from tasks.data.files.formats import SUFFIXES, format_of_name
from tasks.data.files.sources import SourceReader, SourceRow
from tasks.data.rows import ITEM, ITEM_ID, QUERY, ROW_ID
from tasks.foundation.errors import ConfigError, DataError

MOST_ROWS = 10_000  # all its items are in memory, next to the holdout's items


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
    rows = read_golden_set(Path(file).expanduser())
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
        store.write(key, out.getvalue())
    return key


def read_golden_set(file: Path) -> list[GoldenRow]:
    """Return the rows of a file, each pair once, in their order. Raises as `store_golden_set` does."""
    if not file.is_file():
        raise ConfigError(f"evaluate.golden: there is no file {file.absolute()} on this machine")
    form = format_of_name(file.name)
    if form is None:
        known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
        raise ConfigError(f"evaluate.golden: {file} is none of {known}; save it as one of these")
    rows = list(dict.fromkeys(_rows(SourceReader(file, form))))
    texts: dict[str, str] = {}
    for row in rows:
        if texts.setdefault(row.item_id, row.item) != row.item:
            raise DataError(f"{file}: item {row.item_id!r} has two texts, {texts[row.item_id]!r} and {row.item!r}")
    return rows


def _rows(reader: SourceReader) -> Iterator[GoldenRow]:
    for number, record in enumerate(reader, start=1):
        if number > MOST_ROWS:
            raise DataError(f"{record.file} has more than {MOST_ROWS:,} rows, the most that a golden set may have")
        query, item = _text(record, QUERY), _text(record, ITEM)
        given = record.values.get(ITEM_ID)
        # Without an id, as for a span's rows: one text is one item.
        item_id = str(given) if given is not None else hashlib.blake2b(item.encode(), digest_size=16).hexdigest()
        yield GoldenRow(query, item, item_id)


def _text(record: SourceRow, column: str) -> str:
    if column not in record.values:
        raise record.error(column, f"missing; a golden set has query, item, and perhaps item_id, "
                                   f"this has {', '.join(record.values)}")  # fmt: skip
    text = record.values[column]
    if not isinstance(text, str) or not text.strip():
        raise record.error(column, "empty, or no text; every row of a golden set needs its query and its item")
    return text

"""Compare a span of a source with the workspace's version, row by row, and merge the two.

Rows are paired by their key: the row id, or for an item feed the item id and the time. Several rows with the same key
are paired in order.
"""

import enum
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from tasks.data.rows import CORE, ITEM_ID, ROW_ID, TIME
from tasks.data.spool import Columns, row_of
from tasks.data.tables import open_tables
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
                    core: list[Any] = [row.pop(column) for column in CORE]
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

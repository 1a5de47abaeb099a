"""Collect rows in one spool file of JSON lines for each span, then convert each spool to Parquet.

The number of rows in memory is bounded, for an input of any length.
"""

import contextlib
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data.files.values import as_bool, as_code, as_float, as_text
from tasks.data.rows import CORE, LABEL
from tasks.foundation.records import Record

OPEN_SPOOLS = 64
ROWS_IN_GROUP = 1000
CHARS_IN_GROUP = 2**18  # with long texts, a row group has fewer rows
ROWS_IN_PART = 100_000

_LABEL = list(CORE).index(LABEL)
Columns = Mapping[str, tuple[str, str]]  # source column -> (name in the span, one of float64, bool, string, code)

_TYPES: dict[str, tuple[pa.DataType, Callable[[Any], bool | float | str | None]]] = {
    "float64": (pa.float64(), as_float),
    "bool": (pa.bool_(), as_bool),
    "string": (pa.string(), as_text),
    "code": (pa.string(), as_code),
}


class BuiltSpan(Record):
    """One span's Parquet files in a local folder. `columns` is name -> type."""

    name: str
    folder: Path
    rows: int
    columns: dict[str, str]
    content_sha256: str
    labels: int  # rows with a label


class Spools:
    """Appends lines to one file for each span; only the most recently used files are open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: OrderedDict[str, BinaryIO] = OrderedDict()
        self.spans: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def append(self, span: str, line: bytes) -> None:
        if span in self._open:
            self._open.move_to_end(span)
        else:
            if len(self._open) == OPEN_SPOOLS:
                self._open.popitem(last=False)[1].close()
            self._open[span] = self.path(span).open("ab")
            self.spans.add(span)
        self._open[span].write(line)

    def path(self, span: str) -> Path:
        return self._folder / f"{span}.jsonl"


def row_of(line: bytes, others: Columns) -> list[Any]:
    """Return the values of a line: the core columns, then `others` converted to their types."""
    *core, values = json.loads(line)
    for source, (_, kind) in others.items():
        value = values.get(source)
        if isinstance(value, list):  # a text, and the value that the source's spelling gives it
            value = value[0 if kind in ("string", "code") else 1]
        core.append(None if value is None else _TYPES[kind][1](value))
    return core


def build_span(name: str, spool: Path, folder: Path, others: Columns) -> BuiltSpan:
    """Write the rows of a spool as `part-<n>.parquet` into `folder`, in their order.

    Args:
        others: the columns in addition to the core columns.
    """
    schema = pa.schema([*CORE.items(), *((column, _TYPES[kind][0]) for column, kind in others.values())])
    columns = {field.name: str(field.type) for field in schema}
    digest = hashlib.sha256(json.dumps(list(columns.items())).encode())
    folder.mkdir(parents=True, exist_ok=True)
    parts = rows = rows_in_part = labels = 0
    with contextlib.ExitStack() as part, spool.open("rb") as lines:
        writer: pq.ParquetWriter | None = None
        for group in _groups(lines):
            values: list[list[Any]] = [[] for _ in schema]
            for line in group:
                row = row_of(line, others)
                digest.update(json.dumps(row, separators=(",", ":")).encode() + b"\n")
                for column, value in zip(values, row, strict=True):
                    column.append(value)
            if writer is None or rows_in_part + len(group) > ROWS_IN_PART:
                part.close()
                writer = part.enter_context(pq.ParquetWriter(folder / f"part-{parts:05d}.parquet", schema))
                parts, rows_in_part = parts + 1, 0
            arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
            writer.write_table(pa.table(arrays, schema=schema))
            rows, rows_in_part = rows + len(group), rows_in_part + len(group)
            labels += len(group) - arrays[_LABEL].null_count
    return BuiltSpan(
        name=name, folder=folder, rows=rows, columns=columns, content_sha256=digest.hexdigest(), labels=labels
    )


def _groups(lines: BinaryIO) -> Iterator[list[bytes]]:
    """Group lines into lists, one for each row group."""
    group: list[bytes] = []
    chars = 0
    for line in lines:
        group.append(line)
        chars += len(line)
        if len(group) == ROWS_IN_GROUP or chars >= CHARS_IN_GROUP:
            yield group
            group, chars = [], 0
    if group:
        yield group

"""Rows in every format, dialect, packing and spelling of times and nulls: the same rows come back, or a refusal.

With the options that the writer used, nothing is refused. Quotes of a dialect that is detected may stay or go, but no
row may.
"""

from __future__ import annotations

import bz2
import contextlib
import datetime as dt
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from email.utils import format_datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tasks.contracts.spans import SpanKind
from tasks.data.canonical import Canonicaliser
from tasks.data.files.csv_rows import DETECTED, CsvOptions, Quote
from tasks.data.files.formats import Format
from tasks.data.files.sources import SourceReader
from tasks.data.source_spans import row_of
from tasks.foundation.errors import StageError
from tests.support.workspace.inputs import encoded

EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
FUZZ = settings(
    max_examples=int(EXAMPLES or 300),
    derandomize=EXAMPLES is None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
UTC = dt.UTC
EXACT = 2**53


def _epoch(unit: int) -> Callable[[dt.datetime], int]:
    return lambda moment: int(moment.timestamp()) * unit


TIMES: dict[str, Callable[[dt.datetime], Any]] = {
    "iso": lambda moment: moment.isoformat(),
    "bigquery": lambda moment: moment.strftime("%Y-%m-%d %H:%M:%S UTC"),
    "offset": lambda moment: moment.astimezone(dt.timezone(dt.timedelta(hours=2))).strftime("%Y-%m-%d %H:%M:%S %z"),
    "rfc 822": format_datetime,
    "digits": lambda moment: int(moment.strftime("%Y%m%d%H%M%S")),
    **{str(unit): _epoch(unit) for unit in (1, 10**3, 10**6, 10**9)},
}
PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "gz": gzip.compress,
    "gz.gz": lambda content: gzip.compress(gzip.compress(content)),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: bytes(pa.Codec("zstd").compress(content, asbytes=True)),
}
TEXTS = st.one_of(
    st.text(st.sampled_from("ab 7,;|\t\"\\'\n\ré\u65e5."), max_size=12),
    st.sampled_from(
        ['"kettle', '24"', '"Heavy" pan', '24\\" wide', "null", "NaN", "red shoes", "a, b\n2026-01-01,c,d,e"]
    ),
)
IDS = st.one_of(st.none(), st.integers(1, 10**19), st.sampled_from(["A1", "007", "12E4", "x y"]))
NUMBERS = st.one_of(st.none(), st.integers(-5, 5), st.integers(EXACT - 2, EXACT + 2))


class Row(NamedTuple):
    moment: dt.datetime
    query: str
    item: str
    sku: int | str | None
    code: int | None


class Form(NamedTuple):
    """One way to write the rows."""

    form: Format
    time: str
    packing: str
    quote: Quote
    delimiter: str
    end: str
    mark: bool
    null: str  # of an id or a number
    options_given: bool
    joined: bool


MOMENTS = st.integers(700_000_000, 1_790_000_000).map(lambda seconds: dt.datetime.fromtimestamp(seconds, UTC))
ROWS = st.lists(st.builds(Row, MOMENTS, TEXTS, TEXTS, IDS, NUMBERS), min_size=1, max_size=6)
FORMS = st.builds(
    Form,
    st.sampled_from(list(Format)),
    st.sampled_from(list(TIMES)),
    st.sampled_from(list(PACKINGS)),
    st.sampled_from(list(Quote)),
    st.sampled_from(",;\t|"),
    st.sampled_from(("\n", "\r\n")),
    st.booleans(),
    st.sampled_from(("", r"\N", "null", "NaN", "None")),
    st.booleans(),
    st.booleans(),
)


def records(rows: list[Row], form: Form) -> list[dict[str, Any]]:
    return [
        {"at": TIMES[form.time](row.moment), "q": row.query, "t": row.item, "sku": row.sku, "code": row.code}
        for row in rows
    ]


def content(rows: list[Row], form: Form) -> bytes:
    values = records(rows, form)
    match form.form:
        case Format.jsonl:
            between = "" if form.joined else "\n"
            text = between.join(json.dumps(each, ensure_ascii=form.mark) for each in values)
            return text.encode()
        case Format.parquet:
            columns = {
                "at": pa.array([each["at"] for each in values]),
                "q": pa.array([each["q"] for each in values], pa.string()),
                "t": pa.array([each["t"] for each in values], pa.string()),
                "sku": pa.array([None if each["sku"] is None else str(each["sku"]) for each in values], pa.string()),
                "code": pa.array([each["code"] for each in values], pa.int64()),
            }
            out = io.BytesIO()
            pq.write_table(pa.table(columns), out)
            return out.getvalue()
        case Format.xml:
            return encoded(values, Format.xml)
        case Format.csv:
            text = csv_text(values, form)
            return (b"\xef\xbb\xbf" if form.mark else b"") + text.encode()


def csv_text(values: list[dict[str, Any]], form: Form) -> str:
    cells = [["at", "q", "t", "sku", "code"]]
    cells += [[form.null if each[name] is None else str(each[name]) for name in cells[0]] for each in values]
    if form.quote is Quote.none:
        return "".join(form.delimiter.join(each) + form.end for each in cells)
    if form.quote is Quote.backslash:
        quoted = [[cell if cell == form.null else _escaped(cell) for cell in each] for each in cells]
        return "".join(form.delimiter.join(each) + form.end for each in quoted)

    def quoted_if_needed(cell: str) -> str:
        needed = any(each in cell for each in (form.delimiter, '"', "\n", "\r"))
        return '"' + cell.replace('"', '""') + '"' if needed else cell

    return "".join(form.delimiter.join(map(quoted_if_needed, each)) + form.end for each in cells)


def _escaped(cell: str) -> str:
    return '"' + cell.replace("\\", "\\\\").replace('"', '\\"') + '"'


def writable(rows: list[Row], form: Form) -> list[Row]:
    """The rows without characters that a dialect without quotes can't write."""
    if form.form is not Format.csv or form.quote is not Quote.none:
        return rows

    def plain(text: str) -> str:
        return "".join(each for each in text if each not in (form.delimiter, "\n", "\r"))

    return [
        row._replace(
            query=plain(row.query), item=plain(row.item), sku=plain(row.sku) if isinstance(row.sku, str) else row.sku
        )
        for row in rows
    ]


def expected(rows: list[Row]) -> list[tuple[Any, ...]]:
    def text(value: str) -> str | None:
        return value if value.strip() and value != r"\N" else None

    long = any(row.code is not None and abs(row.code) > EXACT for row in rows)

    def name(value: int | str | None) -> str | None:
        return None if value is None else str(value)

    def code(value: int | None) -> Any:
        return name(value) if long else None if value is None else float(value)

    return [
        (int(row.moment.timestamp()) * 10**6, text(row.query), text(row.item), name(row.sku), code(row.code))
        for row in rows
    ]


def read(path: Path, form: Form) -> list[tuple[Any, ...]]:
    options = CsvOptions(form.delimiter, form.quote) if form.form is Format.csv and form.options_given else DETECTED
    canonical = Canonicaliser(form.form, "at", SpanKind.month, {"query": "q", "item": "t", "item_id": "sku"})
    lines = [canonical.convert(record).to_line(record) for record in SourceReader(path, form.form, options)]
    found = [row_of(line, canonical.columns()) for line in lines]
    return [(time, query, item, item_id, code) for _, time, query, item, item_id, _, code in found]


def without_quotes(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A text of quotes alone is an empty cell to whoever takes them for quotes."""

    def bare(cell: Any) -> Any:
        return (cell.translate({34: None, 92: None}).strip() or None) if isinstance(cell, str) else cell

    return [tuple(map(bare, row)) for row in rows]


TSV = Form(Format.csv, "iso", "plain", Quote.none, "\t", "\n", False, "", False, False)
MOMENT = dt.datetime(2026, 10, 1, tzinfo=UTC)
STRAY = [Row(MOMENT, text, "Title", "S1", None) for text in ("red shoes", '"blue kettle', "lamp", 'screen 24"', "sofa")]


@FUZZ
@given(rows=ROWS, form=FORMS)
@example(rows=STRAY, form=TSV)
@example(rows=STRAY, form=TSV._replace(time="rfc 822"))
def test_the_same_rows_come_back_or_a_refusal(tmp_path: Path, rows: list[Row], form: Form) -> None:
    if form.quote is Quote.none and form.time == "rfc 822":  # it has a comma
        form = form._replace(delimiter="\t")
    rows = writable(rows, form)
    path = tmp_path / "source"
    path.write_bytes(PACKINGS[form.packing](content(rows, form)))
    detected = form.form is Format.csv and not form.options_given
    if form.form is Format.xml:  # blanks around a text are the indent of its element
        rows = [row._replace(query=row.query.strip(), item=row.item.strip()) for row in rows]
    if not detected:
        assert read(path, form) == expected(rows)
        return
    with contextlib.suppress(StageError):
        assert without_quotes(read(path, form)) == without_quotes(expected(rows))

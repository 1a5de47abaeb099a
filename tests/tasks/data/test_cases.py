"""Inputs of kinds that people report in public: from the file to the values in the span, or to the way out."""

from __future__ import annotations

import bz2
import datetime as dt
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import ITEMS, ROWS
from tasks.data.files.formats import Format
from tasks.data.files.shaping import Only, Shaping
from tasks.data.files.spelling import Spelling
from tasks.data.ingest import IngestOptions, ingest
from tasks.foundation.errors import StageError
from tests.support.workspace.inputs import encoded

SHARED = Path(__file__).resolve().parents[3] / "../shared/data/cases"
LOG = {"query": "q", "item": "title", "item_id": "sku"}
FEED = {"id": "sku", "text": "title"}
NOON = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)


class Case(NamedTuple):
    """A source, and its rows in the order of the span as `columns`, or words of the refusal."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...] | None
    refusal: str = ""
    files: Mapping[str, bytes] = {}
    time: str | dt.datetime = "at"
    feed: bool = False
    mapping: dict[str, str] | None = None
    form: Format | None = None
    aside: bool = False
    options: IngestOptions = IngestOptions()


def read(case: Case, source: Path, folder: Path) -> tuple[list[tuple[Any, ...]], int]:
    """The values of the case's columns, and the number of rows that were set aside."""
    store = DirectoryStore(folder / "workspace")
    layout, mapping = (ITEMS, case.mapping or FEED) if case.feed else (ROWS, case.mapping or LOG)
    options = case.options.model_copy(update={"set_aside": folder / "aside" if case.aside else None})
    summary = ingest(store, source, case.form, case.time, SpanKind.month, mapping, layout, options=options)
    tables = [pq.read_table(store.path(key)) for key in sorted(store.list("")) if key.endswith(".parquet")]
    rows = [row for table in tables for row in table.to_pylist()]
    assert summary.rows == len(rows)
    return [tuple(_plain(row[column]) for column in case.columns) for row in rows], summary.set_aside


def _plain(value: Any) -> Any:
    return value.strftime("%Y-%m-%dT%H:%M:%S") if isinstance(value, dt.datetime) else value


def check(case: Case, source: Path, folder: Path, set_aside: int = 0) -> None:
    if case.rows is None:
        with pytest.raises(StageError, match=case.refusal):
            read(case, source, folder)
        assert not (folder / "workspace").exists()
    else:
        assert read(case, source, folder) == ([*case.rows], set_aside)


def times(*texts: object) -> bytes:
    return "".join(f'{{"at": {text}, "q": "lamp", "title": "Lamp", "sku": "S1"}}\n' for text in texts).encode()


PART = {"q": "lamp", "title": "Lamp", "sku": "S1"}
AT = "2026-10-01T10:00:00"
EMPTY = pa.BufferOutputStream()
pq.write_table(pa.table({"at": pa.array([], pa.string())}), EMPTY)
OWN = {
    "an inch mark opens and closes a quote": Case(
        ("query", "item_id"),
        (("lamp", "S1"), ('"kettle', "S2"), ("rope", "S3"), ('screen 24"', "S4")),
        files={
            "log.tsv": b'at\tq\tsku\ttitle\n2026-10-01\tlamp\tS1\tL\n2026-10-02\t"kettle\tS2\tK\n'
            b'2026-10-03\trope\tS3\tR\n2026-10-04\tscreen 24"\tS4\tS\n'
        },
    ),
    "sessions of eighteen digits": Case(
        ("session",),
        (("1700000000000000001",), ("1700000000000000002",)),
        files={
            "log.csv": b"at,q,sku,title,session\n2026-10-01,a,S1,A,1700000000000000001\n"
            b"2026-10-02,b,S2,B,1700000000000000002\n"
        },
    ),
    "missing ids in every spelling": Case(
        ("item_id",),
        (("S1",), (None,), (None,), (None,), (None,), (None,)),
        files={
            "log.csv": b"at,q,sku,title\n2026-10-01,a,S1,A\n2026-10-01,b,,A\n2026-10-01,c,NaN,A\n2026-10-01,d,null,A\n"
            b"2026-10-01,e,\\N,A\n2026-10-01,f, ,A\n"
        },
    ),
    "an id that a spreadsheet has cut": Case(
        (), None, "row 1, column 'sku': .*scientific", {"log.csv": b"at,q,sku,title\n2026-10-01,a,4.00638E+12,A\n"}
    ),
    "one time in all units": Case(
        ("time",),
        ((AT,),) * 7,
        files={
            "log.jsonl": times(
                1790848800,
                1790848800000,
                1790848800000000,
                '"1790848800000000000"',
                '"2026-10-01 10:00:00 UTC"',
                20261001100000,
                '"Thu, 01 Oct 2026 10:00:00 GMT"',
            )
        },
    ),
    "a feed's day as a number": Case(
        ("time", "item_id"),
        (("2026-10-01T00:00:00", "S1"),),
        files={"feed.jsonl": b'{"sku": "S1", "title": "A", "at": 20261001}\n'},
        feed=True,
    ),
    "an Arrow file, whatever its name": Case((), None, "an Arrow .Feather. file; convert it", {"log.dat": b"ARROW1"}),
    "grades in words as label": Case(
        (),
        None,
        "row 1, column 'esci': 'E' is not a number.*heads.multiclass.column",
        {"log.csv": b"at,q,sku,title,esci\n2026-10-01,a,S1,A,E\n"},
        mapping={**LOG, "label": "esci"},
    ),
    "a feed's day of Excel": Case(
        (), None, "1970-01-01 is before 1990", {"feed.csv": b"sku,title,at\nS1,A,46300\n"}, feed=True
    ),
    "a feed without a time": Case(
        ("time", "item_id"),
        (("2026-11-01T12:00:00", "S1"),),
        files={"feed.csv": b"sku,title\nS1,A\n"},
        time=NOON,
        feed=True,
    ),
    "partitions, an empty part and a writer's folders": Case(
        ("time", "event"),
        (("2026-10-01T00:00:00", "click"), ("2026-10-02T00:00:00", "view")),
        files={
            "log/event=click/at=2026-10-01/0.parquet": encoded([PART], Format.parquet),
            "log/event=view/at=2026-10-02/0.parquet": encoded([PART], Format.parquet),
            "log/event=view/at=2026-10-03/0.parquet": EMPTY.getvalue().to_pybytes(),
            "log/_temporary/0.parquet": b"not finished",
            "log/_SUCCESS": b"",
        },
    ),
    "a bad line in a week": Case(
        ("item_id",),
        (("S1",), ("S3",)),
        files={
            "log.csv.bz2": bz2.compress(
                b"at,q,sku,title\n2026-10-01,a,S1,A\n2026-10-02,caf\xe9,S2,B\n2026-10-03,c,S3,C\n"
            )
        },
        aside=True,
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_a_reported_input_gives_its_values_or_the_way_out(tmp_path: Path, name: str) -> None:
    case = OWN[name]
    for file, content in case.files.items():
        (tmp_path / "in" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / file).write_bytes(content)
    check(case, tmp_path / "in" / next(iter(case.files)).split("/")[0], tmp_path, set_aside=int(case.aside))


def ids(*numbers: object) -> tuple[tuple[str], ...]:
    return tuple((f"S{number}",) for number in numbers)


ONE_ID = ("item_id",)
SHARED_CASES = {
    "01-tsv-quotes/log.tsv": Case(ONE_ID, ids(*(f"{n:02}" for n in range(12)))),
    "01b-tsv-phrase/log.tsv": Case(("query",), (('"red shoes" men',), ("lamp",))),
    "01d-open-to-end/log.tsv": Case(("query",), (("lamp",), ('"kettle',), ("mug",))),
    "03-excel-sci/log.csv": Case((), None, "row 1, column 'sku': .* scientific notation"),
    "04-feed-yyyymmdd/feed.jsonl": Case(
        ("time",), tuple((f"2026-10-0{n}T00:00:00",) for n in range(1, 6)), time="day", feed=True
    ),
    "04b-feed-excel-day/feed.csv": Case((), None, "1970-01-01 is before 1990", time="day", feed=True),
    "05-ga4-us/log.jsonl": Case(ONE_ID, ids(*range(5)), time="event_timestamp"),
    "06-bq-utc/log.csv": Case(("time",), tuple((f"2026-10-0{n}T10:00:00",) for n in (1, 2, 3))),
    "07-empty-part/out": Case(ONE_ID, ids(*range(4))),
    "07b-empty-gz/out": Case(ONE_ID, ids(1)),
    "08-hive/log": Case(("event",), (("click",),) * 8, time="day"),
    "08b-hive-event/log": Case(("event",), (("click",),) * 4 + (("impression",),) * 4),
    "09-compressed/log.csv.bz2": Case(ONE_ID, ids(1, 2)),
    "09-compressed/log.csv.xz": Case(ONE_ID, ids(1, 2)),
    "09-compressed/log.csv.zst": Case(ONE_ID, ids(1, 2)),
    "10-utf16/le-nobom.csv": Case((), None, "iconv -f UTF-16LE"),
    "11-one-bad-row/bad-byte.csv": Case(ONE_ID, ids(1, 3), aside=True),
    "11-one-bad-row/ragged.csv": Case(ONE_ID, ids(1, 3), aside=True),
    "11-one-bad-row/cut.jsonl": Case(ONE_ID, ids(1, 3), aside=True),
    "12-index-col/log.csv": Case(("column_1", "item_id"), tuple((float(n), f"S{n}") for n in range(5))),
    "13-float-ids/log.csv": Case(ONE_ID, (("12345",), (None,), ("777",))),
    "13-float-ids/log.parquet": Case((), None, "row 3, column 'sku': .* lost the last digits"),
    "14-merchant-tsv/feed.tsv": Case(
        ("item_id", "description"),
        tuple((f"SKU{n}", f'"Heavy" pan, 9" deep {n}') for n in range(6)),
        time=NOON,
        feed=True,
        mapping={"id": "id", "text": "title"},
    ),
    "14b-merchant-xml/feed.xml": Case(
        ("item_id", "item"), (("A1", "Iron pan"),), time=NOON, feed=True, mapping={"id": "id", "text": "title"}
    ),
    "15-shopify/products.csv": Case(
        ("item_id", "item", "deleted", "time"),
        (("iron-pan", "Iron pan", False, "2026-10-01T08:00:00"), ("tea-pot", "Tea pot", True, "2026-10-02T09:00:00")),
        time="Updated At",
        feed=True,
        mapping={"id": "Handle", "text": "Title", "deleted": "Status"},
        options=IngestOptions(
            shaping=Shaping(only=(Only("Title"),)), spelling=Spelling(true=("archived",), false=("active",))
        ),
    ),
    "17-int96/log.parquet": Case(("until",), (("9999-12-31T00:00:00",),) * 4),
    "17-int96/wrapped.parquet": Case((), None, "2611-02-01 is later"),
    "18-firehose/log.json": Case(ONE_ID, ids(*range(3))),
    "18-firehose/pretty.json": Case((), None, "jq -c"),
    "18-firehose/wrap.json": Case((), None, r"jq -c '\.\[\"products\"\]\[\]'"),
    "19-ga4-items/log.jsonl": Case(
        ("query", "item", "item_id"),
        tuple((f"red shoes {n}", f"Red shoe {n}", f"S{n}") for n in range(3)),
        mapping={"query": "event_params.search_term", "item": "items.item_name", "item_id": "items.item_id"},
        options=IngestOptions(shaping=Shaping(("items",), None, (Only("event_name", ("view_item",)),))),
    ),
    "22-line-ends/cr.csv": Case((), None, "CR alone"),
    "22-line-ends/escaped.csv": Case(("query",), (('24" screen',), ("mug",))),
    "24-null-words/log.csv": Case(
        ("query",),
        tuple(
            (word,) for word in ("(not set)", "null", "NULL", None, "undefined", "NaN", "N/A", "(other)", "none", None)
        ),
    ),
    "30-labels/log.csv": Case((), None, "heads.multiclass.column", mapping={**LOG, "label": "esci"}),
    "30-labels/ok.csv": Case(
        ("label",),
        ((math.inf,), (1.0,), (1.0,), (2.0,), (None,), (None,)),
        mapping={**LOG, "label": "rel"},
    ),
    "30-labels/pct.csv": Case((), None, "'50%' is not a number", mapping={**LOG, "label": "rel"}),
    "32-misnamed/log.csv": Case((), None, "give --format parquet"),
    "32-misnamed/log.parquet.gz": Case(ONE_ID, ids(*range(3))),
    "32-misnamed/o.orc": Case((), None, "an ORC file; convert it"),
    "32-misnamed/f.parquet": Case((), None, "an Arrow .Feather. file; convert it"),
    "32-misnamed/log.feather": Case((), None, "an Arrow .Feather. file; convert it"),
    "32-misnamed/log.jsonl": Case((), None, "give --format csv"),
    "32-misnamed/j.csv": Case((), None, "give --format jsonl"),
    "33-delta/tbl": Case((), None, "a Delta table"),
    "39-feed-no-time/woo.csv": Case(
        ("item_id", "item", "deleted"),
        (("44", "V-neck shirt", False), ("45", "V-neck shirt, red", False), ("46", "Gift card", True)),
        time=NOON,
        feed=True,
        mapping={"id": "ID", "text": "Name", "live": "Published"},
    ),
    "40-empty-id/shop.csv": Case(
        ONE_ID,
        (("iron-pan",), ("tea-pot",), ("mug-big",)),
        time="Updated At",
        feed=True,
        mapping={"id": "Handle", "text": "Title"},
    ),
    "41-null-id/log.csv": Case(ONE_ID, (("S1",), (None,), ("S2",), (None,), (None,), (None,))),
}


@pytest.mark.skipif(not SHARED.exists(), reason="the collected inputs are not on this machine")
@pytest.mark.parametrize("name", SHARED_CASES)
def test_a_collected_input_gives_its_values_or_the_way_out(tmp_path: Path, name: str) -> None:
    case = SHARED_CASES[name]
    check(case, SHARED / name, tmp_path, set_aside=int(case.aside))

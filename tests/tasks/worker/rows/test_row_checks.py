import datetime as dt
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import CorruptFolder, MissingFolder, commit
from tasks.data.rows import SPAN_KIND, read_rows
from tasks.foundation.errors import DataError
from tasks.worker import validate
from tests.support.pages.golden import Golden
from tests.support.workspace.spans import APRIL, MARCH, check, failed, job, quarantined, row, rows, write_span, written

BAD = [
    ({"query": None}, "query is null", "query present"),
    ({"item": None}, "item is null", "item present"),
    ({"item_id": None}, "item_id is null", "item_id present"),
    ({"row_id": None}, "row_id is null", "row_id present"),
    ({"time": None}, "time is null", "time present"),
    ({"time": dt.datetime(2026, 4, 1, tzinfo=dt.UTC)}, "time is outside of its span", "time in its span"),
    ({"query": "ab"}, "query shorter than 3 characters", "query length"),
    ({"item": "  \t  "}, "item shorter than 3 characters", "item length"),
    ({"item": "x" * 51}, "item longer than 50 characters", "item length"),
    ({"item_id": "i" * 2001}, "item_id longer than 2000 bytes", "item_id length"),
    ({"item_id": "i\0"}, "item_id has a NUL character", "item_id without NUL"),
    ({"item": "a lamp\0"}, "item has a NUL character", "item without NUL"),
    ({"label": -0.5}, "label below 0", "label range"),
    ({"label": 5.5}, "label above 5", "label range"),
    ({"price": -1.0}, "price below 0", "price range"),
    ({"price": math.inf}, "price above 1000000000", "price range"),
    ({"price": -math.inf}, "price below 0", "price range"),
    ({"row_id": "r0003"}, "row_id repeats an earlier row of the span", "row_id unique"),
]
LIMITS = [
    "validate.min_text_chars=3",
    "validate.max_text_chars=50",
    "validate.label_min=0",
    "validate.label_max=5",
    "validate.numeric_min=0",
]


@pytest.mark.parametrize(("changes", "reason", "name"), BAD)
def test_a_bad_row_is_set_aside_with_its_reason(
    store: DirectoryStore, tmp_path: Path, changes: dict[str, Any], reason: str, name: str
):
    values = [*rows(25), row(25, **changes), *rows(24, start=26)]
    write_span(store, tmp_path, MARCH, values)
    outcome = validate.judge(job(store, overrides=LIMITS))
    assert quarantined(store, outcome) == [{**values[25], "reason": reason, "span": "2026-03"}]
    assert outcome.quarantine == "runs/k/validate/attempt-1/quarantine/quarantine.parquet"
    assert outcome.reasons == {reason: 1}
    clean = pa.concat_tables(read_rows(store, outcome.rows, []))
    assert clean.num_rows == outcome.rows_clean == outcome.rows[0].rows == 49
    assert failed(outcome) == [name]
    found = check(outcome, name)
    assert (found.severity, found.observed) == ("warning", 1.0)
    assert f"{reason} in 1." in found.sentence
    assert check(outcome, "quarantined share").observed == 0.02


def test_a_row_can_be_bad_for_several_reasons(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [*rows(40), row(40, item=None, price=-3.0), row(41, price=-1.0)])
    outcome = validate.judge(job(store, overrides=LIMITS))
    assert [bad["reason"] for bad in quarantined(store, outcome)] == ["item is null; price below 0", "price below 0"]
    assert outcome.reasons == {"price below 0": 2, "item is null": 1}
    assert outcome.rows_quarantined == 2


def test_a_value_that_a_head_cant_learn_or_no_row_can_weigh_is_bad(store: DirectoryStore, tmp_path: Path):
    """A missing label is fine, and a missing weight is not; numbers in text are read."""
    odd = [
        row(40, brand="other"), row(41, brand=None), row(42, label=9.0), row(43, label=None), row(44, worth="-1"),
        row(45, worth=None), row(46, worth="inf"), row(47, worth="two"),
    ]  # fmt: skip
    fine = [row(number, worth="2.5") for number in range(40)]
    write_span(store, tmp_path, MARCH, [*fine, *({"worth": "1", **each} for each in odd)], worth=pa.string())
    heads = (
        "heads.multiclass={weight: 1, input: query, column: brand, classes: [acme, zen]}",
        "heads.regression={weight: 1, input: pair, low: 0, high: 4}",
        "train.row_weight=worth",
    )
    outcome = validate.judge(job(store, overrides=heads))
    weight = "worth is no weight, a number from 0 on"
    assert {bad["row_id"]: bad["reason"] for bad in quarantined(store, outcome)} == {
        "r0040": "brand is none of heads.multiclass.classes",
        "r0042": "label is not from 0 to 4 (heads.regression)",
        **dict.fromkeys(("r0044", "r0045", "r0046", "r0047"), weight),
    }
    assert failed(outcome) == ["brand usable", "label usable", "worth usable"]
    clean = pa.concat_tables(read_rows(store, outcome.rows, ["worth"]))
    assert clean.schema.field("worth").type == pa.float64()


@pytest.mark.parametrize("changes", [{"label": None}, {"label": math.nan}, {"price": None}, {"price": math.nan}])
def test_a_missing_number_is_allowed_and_becomes_null(store: DirectoryStore, tmp_path: Path, changes: dict[str, Any]):
    write_span(store, tmp_path, MARCH, [*rows(40), row(40, **changes)])
    outcome = validate.judge(job(store, overrides=LIMITS))
    assert failed(outcome) == []
    (column,) = changes
    assert pa.concat_tables(read_rows(store, outcome.rows, ["price"]))[column].to_pylist()[-1] is None


@pytest.mark.parametrize("bound", ["validate.numeric_max=.inf", "validate.numeric_max=1e308"])
def test_infinity_is_bad_with_any_bound(store: DirectoryStore, tmp_path: Path, bound: str):
    write_span(store, tmp_path, MARCH, [*rows(40), row(40, price=math.inf)])
    assert validate.judge(job(store, overrides=[bound])).rows_quarantined == 1


def test_the_first_good_row_with_an_id_is_kept(store: DirectoryStore, tmp_path: Path):
    values = [*rows(40), row(7, query="second"), row(50, item=None), row(50), row(50, query="third")]
    write_span(store, tmp_path, MARCH, values)
    outcome = validate.judge(job(store))
    again = "row_id repeats an earlier row of the span"
    assert [(bad["query"], bad["reason"]) for bad in quarantined(store, outcome)] == [
        ("second", again),
        (values[41]["query"], "item is null"),
        ("third", again),
    ]
    assert outcome.rows_clean == 41


def test_an_id_belongs_to_the_first_span_of_the_window_that_has_it(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40))
    write_span(store, tmp_path, APRIL, [*rows(40, start=100), row(3)])
    outcome = validate.judge(job(store, [MARCH, APRIL]))
    assert outcome.reasons == {"row_id is in an earlier span of the window": 1}
    assert quarantined(store, outcome)[0]["span"] == "2026-04"
    assert [ref.rows for ref in outcome.rows] == [40, 40]


def test_the_bad_rows_of_all_spans_are_in_one_file(store: DirectoryStore, tmp_path: Path):
    # a column that no stage uses may have another type in another span, and even the name of ours
    march = [*rows(40), row(40, item=None, note=1.5, reason="mine")]
    april = [*rows(40, start=100), row(140, query=None, note="n")]
    write_span(store, tmp_path, MARCH, march, note=pa.float64(), reason=pa.string())
    write_span(store, tmp_path, APRIL, april, note=pa.string())
    bad = quarantined(store, validate.judge(job(store, [MARCH, APRIL])))
    assert [(b["span"], b["reason"], b["note"], b["reason_in_source"]) for b in bad] == [
        ("2026-03", "item is null", "1.5", "mine"),
        ("2026-04", "query is null", "n", None),
    ]


def test_numbers_written_as_text_are_read_and_other_text_is_bad(store: DirectoryStore, tmp_path: Path):
    prices = ["12.5", " 3 ", "", None, "n/a", "1e3"]
    values = [*rows(40, price="1"), *(row(40 + n, price=price) for n, price in enumerate(prices))]
    write_span(store, tmp_path, MARCH, values, price=pa.string())
    outcome = validate.judge(job(store))
    assert outcome.reasons == {"price is not a number": 1}
    assert quarantined(store, outcome)[0]["price"] == "n/a"
    clean = pa.concat_tables(read_rows(store, outcome.rows, ["price"]))["price"]
    assert clean.type == pa.float64()
    assert clean.to_pylist()[40:] == [12.5, 3.0, None, None, 1000.0]


@pytest.mark.parametrize(
    ("kind", "brand", "name"),
    [(pa.float64(), 12.0, "12"), (pa.bool_(), True, "true"), (pa.float64(), math.nan, None), (pa.null(), None, None)],
)
def test_categories_of_any_type_become_names(
    store: DirectoryStore, tmp_path: Path, kind: pa.DataType, brand: object, name: str | None
):
    write_span(store, tmp_path, MARCH, rows(40, brand=brand), brand=kind)
    write_span(store, tmp_path, APRIL, rows(40, start=100))
    outcome = validate.judge(job(store, [MARCH, APRIL]))
    brands = pa.concat_tables(read_rows(store, outcome.rows, ["brand"]))["brand"]
    assert brands.type == pa.string()
    assert brands[0].as_py() == name


@pytest.mark.parametrize("column", ["item_id", "price", "brand", "locale"])
def test_a_missing_column_stops_before_anything_is_written(store: DirectoryStore, tmp_path: Path, column: str):
    gone: Any = {column: "gone"}
    write_span(store, tmp_path, MARCH, rows(40))
    write_span(store, tmp_path, APRIL, rows(40, start=100), **gone)
    with pytest.raises(DataError, match=rf"v1: .*'{column}'.*time") as raised:
        validate.judge(job(store, [MARCH, APRIL]))
    assert "2026-03" not in str(raised.value)
    assert written(store) == []


def test_the_column_that_groups_the_holdout_must_be_there(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40))
    with pytest.raises(DataError, match=r".buyer.; evaluate\.group"):
        validate.judge(job(store, overrides=["evaluate.group=buyer"]))


def test_all_problems_of_the_columns_are_reported_at_once(store: DirectoryStore, tmp_path: Path, golden: Golden):
    gone: Any = {"brand": "gone", "label": pa.string(), "price": pa.timestamp("us")}
    write_span(store, tmp_path, MARCH, rows(40, label="good", price=None), **gone)
    with pytest.raises(DataError) as raised:
        validate.judge(job(store))
    first, second, third, way_out = str(raised.value).splitlines()
    golden(sorted((first, second, third)))
    assert "Ingest the span again" in way_out


def test_a_text_column_cannot_be_a_numeric_feature(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40))
    with pytest.raises(DataError, match=r"'query' .*double; .*numeric"):
        validate.judge(job(store, overrides=["features.numeric=[query]"]))


def test_a_corrupt_span_is_named(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40))
    store.write(f"{MARCH.prefix}/part-00001.parquet", b"something else")
    with pytest.raises(CorruptFolder, match=r"2026-03 .*00001.parquet"):
        validate.judge(job(store))
    assert written(store) == []


def test_an_incomplete_span_is_named(store: DirectoryStore):
    with pytest.raises(MissingFolder, match=r"2026-03 v1: .* again"):
        validate.judge(job(store))


@pytest.mark.parametrize(
    ("name", "message"), [("part-00000.parquet", "not readable as Parquet"), ("notes.txt", "no Parquet file")]
)
def test_a_span_that_is_not_parquet_is_named(store: DirectoryStore, tmp_path: Path, name: str, message: str):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / name).write_bytes(b"no rows here")
    commit(store, MARCH.prefix, folder, SPAN_KIND, {})
    with pytest.raises(DataError, match=rf"span 2026-03 v1.*{message}"):
        validate.judge(job(store))

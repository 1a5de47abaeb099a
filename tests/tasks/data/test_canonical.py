import datetime as dt
import json
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.contracts.spans import SpanKind
from tasks.data.canonical import Canonicaliser, CanonicalRow
from tasks.data.files.formats import Format
from tasks.data.files.readers import SourceRow
from tasks.data.files.spelling import as_bool, as_float
from tasks.data.files.values import Float16, Float32
from tasks.foundation.errors import DataError

FILE = Path("in/reviews.jsonl")
MAP = {"query": "q", "item": "t"}
LATE_2026 = dt.datetime(2026, 11, 20, 8, 30, tzinfo=dt.UTC)


def canonicaliser(form: Format = Format.jsonl, **mapping: str) -> Canonicaliser:
    return Canonicaliser(form, "at", SpanKind.month, MAP | mapping)


def convert(values: dict[str, Any], form: Format = Format.jsonl, **mapping: str) -> CanonicalRow:
    row = {"at": 0, "q": "lamp", "t": "Lamp"} | values
    return canonicaliser(form, **mapping).convert(SourceRow(FILE, 3, row))


def type_of(values: list[Any], form: Format = Format.jsonl) -> str:
    """The type that a column of these values gets."""
    columns = canonicaliser(form)
    for value in values:
        columns.convert(SourceRow(FILE, 1, {"at": 0, "q": "", "t": "", "x": value}))
    return columns.columns()["x"][1]


@pytest.mark.parametrize(
    "time",
    [
        "2026-11-20T08:30:00Z",
        "2026-11-20T10:30:00+02:00",
        "2026-11-20 08:30",
        " 20261120T083000 ",
        LATE_2026.timestamp(),
        int(LATE_2026.timestamp()),
        int(LATE_2026.timestamp() * 1000),
        str(int(LATE_2026.timestamp())),
        str(int(LATE_2026.timestamp() * 1000)),
        Decimal(int(LATE_2026.timestamp())),
        int(LATE_2026.timestamp()) * 10**6,
        str(int(LATE_2026.timestamp()) * 10**9),
        20261120083000,
        "20261120083000",
        "2026-11-20 08:30:00 UTC",
        "2026-11-20 10:30:00 +0200",
        "2026-11-20T10:30:00+02:00[Europe/Helsinki]",
        "Fri, 20 Nov 2026 08:30:00 GMT",
        "20 Nov 2026 03:30:00 -0500",
        "Fri, 20 Nov 2026 03:30:00 EST",
        "20 Nov 2026 09:30 +0100 (CET)",
        "2026-11-20T08:30:00Z[UTC]",
        LATE_2026,
        LATE_2026.replace(tzinfo=None),
        LATE_2026.astimezone(dt.timezone(dt.timedelta(hours=-7))),
    ],
)
def test_a_time_is_read_in_every_common_form(time: object) -> None:
    row = convert({"at": time})
    assert (row.span, row.core[1]) == ("2026-11", int(LATE_2026.timestamp()) * 1_000_000)


@pytest.mark.parametrize("time", ["2026-11-20", "20261120", 20261120, 20261120.0, dt.date(2026, 11, 20)])
def test_a_date_is_its_midnight(time: object) -> None:
    assert convert({"at": time}).core[1] == int(dt.datetime(2026, 11, 20, tzinfo=dt.UTC).timestamp()) * 1_000_000


def test_the_span_is_chosen_in_utc() -> None:
    assert convert({"at": "2026-11-01T00:30:00+01:00"}).span == "2026-10"


@given(st.datetimes(min_value=dt.datetime(1, 1, 3), max_value=dt.datetime(9999, 12, 29)))
def test_times_are_exact_to_the_microsecond(moment: dt.datetime) -> None:
    microseconds = convert({"at": moment.isoformat()}).core[1]
    assert dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=microseconds) == moment


@pytest.mark.parametrize(
    "time",
    ["yesterday", "2026-13-01", "20.11.2026", True, [2026], {"$date": 0}, math.inf, 1e300, "1e999",
     "1.79516E+09", 10**20, "0001-01-01T00:00:00+10:00", "Fri, 20 Nov 2026 08:30:00 CEST",
     "Fri, 20 Nov 2026 08:30:00 GMT+0200", "20 Nov 2026 08:30 PM", "2026-11-20T08:30[Europe/Berlin]",
     "20 Nov 0001 08:30:00 GMT"],
)  # fmt: skip
def test_a_value_that_is_no_time_is_an_error_with_place_and_value(time: object) -> None:
    with pytest.raises(DataError, match=r"row 3, column 'at'.* 8601"):
        convert({"at": time})


@pytest.mark.parametrize("time", [None, "", " ", math.nan, "NaN", "null", r"\N"])
def test_a_missing_time_is_an_error(time: object) -> None:
    with pytest.raises(DataError, match="row 3, column 'at': no"):
        convert({"at": time})
    with pytest.raises(DataError, match=r"column 'at'.* q, t"):
        canonicaliser().convert(SourceRow(FILE, 1, {"q": "", "t": ""}))


@pytest.mark.parametrize(
    ("value", "label"),
    [(1, 1.0), (2.5, 2.5), ("4", 4.0), (" -1e2 ", -100.0), (True, 1.0), (Decimal("0.5"), 0.5), (10**400, math.inf),
     (None, None), (math.nan, None), ("NaN", None), (Decimal("nan"), None), ("", None), (" ", None)],
)  # fmt: skip
def test_a_label_is_a_number_or_null(value: object, label: float | None) -> None:
    assert convert({"stars": value}, label="stars").core[5] == label


@pytest.mark.parametrize("value", ["five", "1,5", "0x1", "1_000", "Nan", [1], {}])
def test_a_label_that_is_no_number_is_an_error_with_place_and_value(value: object) -> None:
    with pytest.raises(DataError, match=r"row 3, column 'stars'"):
        convert({"stars": value}, label="stars")


def test_ids_are_kept_as_text() -> None:
    assert convert({"n": "007"}, Format.csv, id="n").core[0] == "007"
    assert convert({"n": 12345678901234567890}, id="n").core[0] == "12345678901234567890"
    assert convert({"n": 7.0}, item_id="n").core[4] == "7"


def test_without_an_id_it_is_made_of_time_query_and_item() -> None:
    one, same = convert({"x": 1}), convert({"q": " LAMP", "t": "lamp ", "x": 2})
    others = [
        convert({"at": 1}),
        convert({"q": "lamps"}),
        convert({"t": "Other lamp"}),
        convert({"i": "7"}, item_id="i"),
    ]
    assert one.core[0] == same.core[0]
    assert len({one.core[0], *(other.core[0] for other in others)}) == 5
    assert one.core[4] == convert({"q": "x"}).core[4] != convert({"t": "Other lamp"}).core[4]


def test_an_item_id_takes_the_place_of_the_items_text_in_the_id_of_a_row() -> None:
    assert len({convert({"t": text, "i": "7"}, item_id="i").core[0] for text in ("Lamp", "Lamp, corrected")}) == 1


MISSING = [None, "", "  ", math.nan, Decimal("nan"), "NaN", "null", "None", r"\N"]


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("form", list(Format))
def test_a_missing_id_of_an_item_is_no_hash_of_its_text(missing: object, form: Format) -> None:
    """The text would be in the catalogue under two ids."""
    assert convert({"n": missing}, form, item_id="n").core[4] is None


@pytest.mark.parametrize("missing", MISSING)
def test_a_missing_id_of_a_row_is_made_from_the_content(missing: object) -> None:
    assert convert({"n": missing}, id="n").core == convert({}).core


@pytest.mark.parametrize("value", ["4.00638E+12", "1e+16", 1e16, float(2**53)])
@pytest.mark.parametrize("role", ["id", "item_id"])
def test_an_id_that_has_lost_digits_is_refused(value: object, role: str) -> None:
    """Several products would be one."""
    with pytest.raises(DataError, match=r"row 3, column 'n'.*lost"):
        convert({"n": value}, Format.csv, **{role: "n"})


@pytest.mark.parametrize(
    ("value", "why"),
    [(7.5, "7.5 has a fraction"), (Float32(7.5), "7.5 has a fraction"), (Float32(2**24), "2 ** 24"),
     (Float32(-(2**24)), "2 ** 24"), (Float16(2**11), "2 ** 11"), (math.inf, "2 ** 53")],
)  # fmt: skip
@pytest.mark.parametrize("role", ["id", "item_id"])
def test_a_float_that_is_no_exact_whole_number_is_no_id(value: float, why: str, role: str) -> None:
    """16777217 in float32 is 16777216, the id of another item."""
    with pytest.raises(DataError, match=rf"row 3, column 'n'.*{re.escape(why)}"):
        convert({"n": value}, Format.parquet, **{role: "n"})


@pytest.mark.parametrize(
    ("value", "form", "read"),
    [(Float32(2**24 - 1), Format.parquet, "16777215"), (Float16(7), Format.parquet, "7"), ("7.5", Format.csv, "7.5"),
     ("12345.0", Format.csv, "12345"), ("0.0", Format.csv, "0"), ("-1.0", Format.csv, "-1"), ("-0.0", Format.csv, "0"),
     (0.0, Format.jsonl, "0"), (-0.0, Format.jsonl, "0"), ("00.0", Format.csv, "00.0"), ("2.10", Format.csv, "2.10"),
     ("007", Format.csv, "007"),
     ("12E4", Format.csv, "12E4"), (2**53 + 1, Format.jsonl, str(2**53 + 1)), ("12345.0", Format.jsonl, "12345.0")],
)  # fmt: skip
def test_an_id_has_one_text_in_every_format(value: object, form: Format, read: str) -> None:
    assert convert({"n": value}, form, item_id="n").core[4] == read


def test_texts_that_are_missing_are_null() -> None:
    assert convert({"q": "", "t": None}).core[2:] == (None, None, None, None)
    assert convert({"q": r"\N", "t": " "}).core[2:4] == (None, None)
    assert convert({"q": "nan", "t": "None"}).core[2:4] == ("nan", "None"), "a bread, and a perfume"
    assert convert({"q": math.nan, "t": 1984}).core[2:4] == (None, "1984")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2.5, None], "float64"),
        ([True, False, None], "bool"),
        (["a", None], "string"),
        (["1", "2"], "string"),
        ([None, math.nan], "float64"),
        ([1, "a"], "string"),
        ([1, True], "string"),
        ([[1], {"a": 1}], "string"),
        ([Decimal("1.5"), 10**400], "float64"),
        ([1, 2**53 + 1], "code"),
        ([1, -(2**53)], "float64"),
        (["null", 1], "string"),
        ([LATE_2026], "string"),
    ],
)
def test_a_column_has_the_type_that_all_its_values_share(values: list[Any], kind: str) -> None:
    assert type_of(values) == kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-2.5", "1e3", ".5", None], "float64"),
        (["1", "x"], "string"),
        (["true", "False"], "bool"),
        (["true", "1"], "string"),
        (["01067", "99999"], "string"),
        (["0", "0.5", "10", "NaN"], "float64"),
        (["nan", "true"], "bool"),
        (["nan", "NESTLE"], "string"),
        (["null", "None", r"\N", " ", "1"], "float64"),
        (["1", "9007199254740993"], "code"),
        (["1", "9007199254740992"], "float64"),
        (["1.5", "9007199254740993"], "float64"),
        (["1,5"], "string"),
        (["١"], "string"),
    ],
)
def test_the_texts_of_csv_are_recognised(values: list[Any], kind: str) -> None:
    assert type_of(values, Format.csv) == kind


def test_mapped_columns_are_not_kept_twice() -> None:
    assert convert({"stars": 1, "brand": "acme"}, label="stars").others == {"brand": "acme"}


def test_a_column_named_like_a_core_column_is_renamed() -> None:
    columns = canonicaliser()
    row = columns.convert(
        SourceRow(FILE, 1, {"at": 0, "q": "", "t": "", "label": "new", "time": 1, "time_source": True, "brand": "a"})
    )
    assert row.core[5] is None
    assert columns.columns() == {
        "brand": ("brand", "string"),
        "label": ("label_source", "string"),
        "time": ("time_source_source", "float64"),
        "time_source": ("time_source", "bool"),
    }


def test_nested_values_become_json() -> None:
    others = convert({"x": {"ä": [1, None, LATE_2026]}}).others
    assert json.loads(str(others["x"])) == {"ä": [1, None, str(LATE_2026)]}


def test_bytes_are_text_or_an_error() -> None:
    assert convert({"x": "ä".encode()}).others == {"x": "ä"}
    with pytest.raises(DataError, match=r"row 3, column 'x': .*UTF-8"):
        convert({"x": b"\xff"})


@pytest.mark.parametrize("values", [{"x": "\ud83d"}, {"q": "\ud83d"}, {"x": ["\ud83d"]}, {"\ud83d": 1}])
def test_half_a_surrogate_pair_is_an_error_that_names_the_column(values: dict[str, Any]) -> None:
    record = SourceRow(FILE, 3, {"at": 0, "q": "", "t": ""} | values)
    row = canonicaliser().convert(record)
    name = next(iter(values)).encode(errors="backslashreplace").decode()
    with pytest.raises(DataError) as caught:
        row.to_line(record)
    assert str(caught.value).startswith(f"in/reviews.jsonl, row 3, column {name!r}")


def test_scalars_as_numbers_and_booleans() -> None:
    assert [as_float(value) for value in (1, "1.5", -(10**400))] == [1.0, 1.5, -math.inf]
    assert [as_bool(value) for value in (True, "TRUE", " false")] == [True, True, False]
    assert [as_float("NaN"), as_bool("nan")] == [None, None], "of a column of numbers, or of booleans"

"""A first look at a source: roles, mistakes with their ways out, and the command that ingests it."""

from __future__ import annotations

import datetime as dt
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.load import load_config
from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import ITEMS, ROWS
from tasks.data.files.facts import ColumnFacts, SourceFacts
from tasks.data.files.formats import Format
from tasks.data.files.shaping import Only, Shaping
from tasks.data.files.spelling import parse_spelling
from tasks.data.ingest import IngestOptions, ingest
from tasks.data.likely_mistakes import unread_label
from tasks.data.look import LookOptions, look
from tasks.data.mapping import parse_map
from tasks.foundation.errors import ConfigError
from tests.support.workspace.inputs import write_input

START = dt.date(2026, 9, 28)
QUERIES = ("rain jacket", "Wollsocken", "pan", "blanket", "Kissen")
TITLES = ("Waterproof rain jacket, navy", "Socken aus Wolle", "Cast iron frying pan", "A warm blanket", "Daunenkissen")

NOTE = "A warm blanket for the cold winter evenings at home"


def row(number: int, **changes: Any) -> dict[str, Any]:
    day = (START + dt.timedelta(days=number // 6)).isoformat()
    which = number % 5
    return {"at": day, "search": QUERIES[which], "title": TITLES[which], "sku": f"A-{which:03}", "click": 1} | changes


ROWS_OF_LOG = [row(number, search=f"{QUERIES[number % 5]} {number % 3}") for number in range(300)]


def looked(tmp_path: Path, rows: list[dict[str, Any]], form: Format = Format.csv, **options: Any) -> SourceFacts:
    path = write_input(tmp_path / f"log.{form}", rows, form)
    return look(path, ROWS, LookOptions.model_validate(options))


def problems(facts: SourceFacts) -> dict[str, str]:
    return {each.kind: each.text for each in facts.problems}


@pytest.mark.parametrize("form", list(Format))
def test_roles_follow_from_names_and_values_and_so_does_the_command(tmp_path: Path, form: Format) -> None:
    facts = looked(tmp_path, ROWS_OF_LOG, form)
    assert facts.mapping == {"query": "search", "item": "title", "item_id": "sku", "label": "click"}
    assert (facts.time_column, facts.span, facts.rows, facts.problems) == ("at", "month", 300, ())
    assert shlex.split(facts.command)[4:] == [
        "--time-column", "at", "--span", "month", "--map", "query=search,item=title,item_id=sku,label=click"
    ]  # fmt: skip


def test_columns_are_described(tmp_path: Path) -> None:
    rows = [*(row(number, note=None if number % 2 else NOTE) for number in range(99)), row(99, note=" ")]
    title, note = (each for each in looked(tmp_path, rows).columns if each.name in ("title", "note"))
    assert (title.type, title.nulls, title.distinct, title.lengths) == ("text", 0, 5, (12, 16, 28))
    assert title.common[0].share == 0.2
    assert [(each.value, each.share) for each in note.languages] == [("en", 1.0)]
    assert (note.nulls, note.distinct, note.role) == (50, 1, None)


@pytest.mark.parametrize("form", [Format.csv, Format.jsonl, Format.parquet])
def test_a_column_without_any_value_is_never_proposed(tmp_path: Path, form: Format) -> None:
    rows = [row(n, timestamp=None, product_id="", rating=None, query=" ", item=None) for n in range(60)]
    rows = [{name: value for name, value in each.items() if name not in ("sku", "click")} for each in rows]
    facts = looked(tmp_path, rows, form)
    assert (facts.mapping, facts.time_column) == ({"query": "search", "item": "title"}, "at")


def test_what_is_read_is_bounded_and_counted_in_full(tmp_path: Path) -> None:
    rows = [row(number, price=None if number < 5000 else number) for number in range(6000)]
    facts = looked(tmp_path, rows, Format.jsonl)
    (price,) = (each for each in facts.columns if each.name == "price")
    assert (facts.rows, facts.sampled, price.nulls, price.type) == (6000, 2000, 5000, "number")
    assert 250 < price.distinct < 420
    assert facts == looked(tmp_path, rows, Format.jsonl)


def test_an_item_that_is_an_id_is_named_with_the_mapping_for_it(tmp_path: Path) -> None:
    rows = [{name: value for name, value in each.items() if name != "title"} for each in ROWS_OF_LOG]
    facts = looked(tmp_path, rows, mapping={"query": "search", "item": "sku"})
    assert "item_id=sku" in problems(facts)["ids"]
    alone = looked(tmp_path, rows)
    assert alone.mapping == {"query": "search", "item_id": "sku", "label": "click"}
    assert "millrace look FILE --items" in problems(alone)["missing"]
    assert parse_map(alone.command.split("--map ")[1])


def test_numbers_under_the_name_of_an_item_are_its_ids(tmp_path: Path) -> None:
    rows = [
        {"Datum": each["at"], "Suche": each["search"], "Produkt": 1000 + n % 50} for n, each in enumerate(ROWS_OF_LOG)
    ]
    assert looked(tmp_path, rows).mapping == {"query": "Suche", "item_id": "Produkt"}


def test_a_european_export_gets_the_options_that_read_it(tmp_path: Path) -> None:
    rows = [
        row(n, at=f"{n % 28 + 1}.11.2025", price=f"{n},5" if n % 3 else str(n), click="ja" if n % 2 else "nein")
        for n in range(90)
    ]
    path = write_input(tmp_path / "log.csv", rows, Format.csv)
    facts = look(path, ROWS, LookOptions())
    assert {"decimal", "date", "words"} <= problems(facts).keys()
    words = shlex.split(facts.command)
    assert words[words.index("--decimal") :] == ["--decimal", ",", "--dayfirst", "--true", "ja", "--false", "nein"]
    assert facts.first == "2025-11-01T00:00:00+00:00"
    spelling = parse_spelling(",", True, "ja", "nein")
    assert look(path, ROWS, LookOptions(spelling=spelling)).problems == ()
    store = DirectoryStore(tmp_path / "workspace")
    options = IngestOptions(spelling=spelling)
    assert ingest(store, path, None, "at", SpanKind.month, facts.mapping, options=options).rows == 90


@pytest.mark.parametrize(
    "time", [lambda t: int(t), lambda t: int(t * 1e6), lambda t: dt.datetime.fromtimestamp(t).strftime("%F %T UTC")]
)
@pytest.mark.parametrize("form", list(Format))
def test_a_column_of_times_since_1970_or_of_bigquery_is_found(tmp_path: Path, form: Format, time: Any) -> None:
    rows = [row(n, at=None, seen=time(1_790_000_000 + n), size=n) for n in range(60)]
    rows = [{name: value for name, value in each.items() if name != "at"} for each in rows]
    assert looked(tmp_path, rows, form).time_column == "seen"


def test_a_month_that_comes_first_is_named(tmp_path: Path) -> None:
    facts = looked(tmp_path, [row(number, at=f"11/{number % 28 + 1}/2026") for number in range(60)])
    assert "begins with the month" in problems(facts)["date"]
    assert "--dayfirst" not in facts.command


def test_few_odd_values_that_make_a_column_text_are_named(tmp_path: Path) -> None:
    facts = looked(tmp_path, [row(number, price="n/a" if number == 76 else number) for number in range(300)])
    assert "in row 77" in problems(facts)["odd"]


@pytest.mark.parametrize(
    ("mapping", "kind"),
    [
        ({"query": "title", "item": "search", "item_id": "sku"}, "swapped"),
        ({"query": "title", "item": "search"}, "swapped"),
        ({"query": "search", "item": "title", "label": "title"}, "same"),
        ({"query": "search", "item": "title", "id": "sku"}, "repeated"),
    ],
)
def test_a_mapping_that_can_hardly_be_meant_is_named(tmp_path: Path, mapping: dict[str, str], kind: str) -> None:
    assert kind in problems(looked(tmp_path, ROWS_OF_LOG, mapping=mapping))


@pytest.mark.parametrize(
    ("title", "kind"), [("Product", "constant"), ("<b>Pan</b> &amp; lid", "markup"), ("WollmÃ¼tze", "misread")]
)
def test_texts_that_teach_nothing_or_are_faulty_are_named(tmp_path: Path, title: str, kind: str) -> None:
    rows = [{**each, "title": title if kind == "constant" or not n % 9 else each["title"]}
            for n, each in enumerate(ROWS_OF_LOG)]  # fmt: skip
    assert kind in problems(looked(tmp_path, rows, mapping={"query": "search", "item": "title"}))


def test_one_column_as_query_and_item_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'title' .*query .*item"):
        parse_map("query=title,item=title")


def test_names_that_say_nothing_are_told_apart_by_their_items(tmp_path: Path) -> None:
    rows = [{"t": each["at"], "a": each["title"], "b": each["search"], "sku": each["sku"]} for each in ROWS_OF_LOG]
    facts = looked(tmp_path, rows, mapping={"query": "a", "item": "b", "item_id": "sku"})
    assert "map query=b,item=a" in problems(facts)["swapped"]
    guessed = looked(tmp_path, rows)
    assert (guessed.mapping["query"], guessed.mapping["item"], guessed.time_column) == ("b", "a", "t")


def test_reviews_that_search_for_short_titles_are_not_swapped(tmp_path: Path) -> None:
    rows = [row(number, search=f"review {number} " + "of a very good product " * 12) for number in range(60)]
    assert "swapped" not in problems(looked(tmp_path, rows, mapping={"query": "search", "item": "title"}))


def test_a_role_that_no_column_has_is_left_to_choose(tmp_path: Path) -> None:
    facts = looked(tmp_path, [{"n": number, "m": number} for number in range(9)])
    assert "--time-column COLUMN" in facts.command
    assert "query=COLUMN,item=COLUMN" in facts.command
    assert sum(each.kind == "missing" for each in facts.problems) == 3


def test_a_feed_has_roles_of_its_own(tmp_path: Path) -> None:
    rows = [{"sku": f"A{n}", "title": TITLES[n % 5], "updated_at": "2026-11-01", "removed": "no"} for n in range(40)]
    facts = look(write_input(tmp_path / "feed.jsonl", rows), ITEMS, LookOptions())
    assert facts.mapping == {"id": "sku", "text": "title", "deleted": "removed"}
    assert facts.command.startswith("millrace ingest --items ")


def test_nested_columns_are_named_by_their_path(tmp_path: Path) -> None:
    rows = [
        {"request": {"query": QUERIES[n % 5], "n": n}, "title": TITLES[n % 5], "at": "2026-11-01"} for n in range(30)
    ]
    facts = looked(tmp_path, rows, Format.jsonl)
    assert facts.mapping["query"] == "request.query"


def test_a_column_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'nope'; .*at, search"):
        looked(tmp_path, ROWS_OF_LOG, time_column="nope")


@pytest.mark.parametrize("zero", ["0", "Nein", "false"])
def test_a_label_that_no_head_reads_is_named(zero: str) -> None:
    facts = {"name": "click", "type": "number", "suggests": None, "nulls": 0, "distinct": 2, "lengths": None}
    common = [{"value": "1", "share": 0.8}, {"value": zero, "share": 0.2}]

    column = ColumnFacts.model_validate({**facts, "languages": [], "common": common, "ids": False, "odd": None})
    found = unread_label(load_config(), column)
    assert found
    assert "0 in 20% of" in found.text
    assert unread_label(load_config(Path("configs/demo.yaml")), column) is None


def test_an_id_that_names_groups_of_items_is_named_with_the_column_of_ids(tmp_path: Path) -> None:
    rows = [{"sku": f"A-{n:03}", "brand": "ABC"[n % 3], "title": f"Lamp {n} of brass"} for n in range(60)]
    path = write_input(tmp_path / "feed.csv", rows, Format.csv)
    said = problems(look(path, ITEMS, LookOptions(mapping={"id": "brand", "text": "title"})))
    assert "'brand', mapped as id" in said["repeated"]
    assert said["repeated"].endswith("map id=sku")
    assert "repeated" not in problems(look(path, ITEMS, LookOptions(mapping={"id": "sku", "text": "title"})))
    changed = [row | {"sku": f"A-{n % 20:03}", "change": f"c-{n}"} for n, row in enumerate(rows)]
    changed = [row | {"title": f"Lamp {row['sku']} of brass"} for row in changed]  # three records of each item
    path = write_input(tmp_path / "history.csv", changed, Format.csv)
    assert "repeated" not in problems(look(path, ITEMS, LookOptions(mapping={"id": "sku", "text": "title"})))


@pytest.mark.parametrize("nested", [False, True])
def test_a_column_of_bytes_is_shown_and_named(tmp_path: Path, nested: bool) -> None:
    column = pa.array([b"\xff\xd8\xff\xe0"] * 30, pa.binary())
    rows = {
        "at": ["2026-10-01"] * 30,
        "q": [f"query {n}" for n in range(30)],
        "title": [f"Item {n}" for n in range(30)],
    }
    picture = pa.StructArray.from_arrays([column], ["jpeg"]) if nested else column
    pq.write_table(pa.table({**rows, "picture": picture}), tmp_path / "log.parquet")
    name = "picture.jpeg" if nested else "picture"
    facts = look(tmp_path / "log.parquet", ROWS, LookOptions(shaping=Shaping(only=(Only(name),))))
    said = [each.text for each in facts.problems if each.column == name]
    assert [f"column '{name}'" in each and "row 1" in each for each in said] == [True]

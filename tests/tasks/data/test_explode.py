"""A log with one row for each search, and lists of the ids that were shown and clicked."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import ROWS
from tasks.data.files.facts import SourceFacts
from tasks.data.files.formats import Format
from tasks.data.files.lists import members
from tasks.data.files.nested import parse_explode
from tasks.data.files.shaping import Shaping
from tasks.data.ingest import IngestOptions, IngestSummary, ingest
from tasks.data.look import LookOptions, look
from tasks.data.mapping import parse_map
from tasks.foundation.errors import ConfigError, DataError
from tests.support.workspace.inputs import rows_of, write_input

SEARCHES = [
    {"sid": "s1", "at": "2026-01-05", "q": "lamp", "clicked": ["P1", "P2"], "shown": ["P3", "P1"]},
    {"sid": "s2", "at": "2026-01-06", "q": "mug", "clicked": ["007"], "shown": ["007"]},
    {"sid": "s3", "at": "2026-01-07", "q": "pan", "clicked": [], "shown": ["P9"]},
]
CLICKS = [("lamp", "P1"), ("lamp", "P2"), ("mug", "007")]
SPELLINGS = {
    "JSON": json.dumps,
    "Python": str,
    "pipes": "|".join,
    "blanks": " ".join,
    "commas": ", ".join,
    "numpy": lambda ids: "[" + " ".join(map(repr, ids)) + "]",
    "PostgreSQL": lambda ids: "{" + ",".join(ids) + "}",
}


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def spelled(write: Any) -> list[dict[str, Any]]:
    return [each | {name: write(each[name]) for name in ("clicked", "shown")} for each in SEARCHES]


def exploded(
    store: DirectoryStore, rows: list[dict[str, Any]], form: Format, explode: str, columns: str
) -> IngestSummary:
    source = write_input(store.root.parent / f"log.{form}", rows, form)
    options = IngestOptions(shaping=Shaping(parse_explode(explode)))
    return ingest(store, source, None, "at", SpanKind.month, parse_map(columns), options=options)


def pairs(store: DirectoryStore, *more: str) -> list[tuple[Any, ...]]:
    found = rows_of(store, "2026-01").to_pylist()
    return sorted(tuple(row[name] for name in ("query", "item_id", *more)) for row in found)


@pytest.mark.parametrize(
    ("form", "spelling"),
    [
        *((Format.csv, each) for each in SPELLINGS),
        (Format.jsonl, "a list"),
        (Format.parquet, "a list"),
        (Format.jsonl, "Python"),
    ],
)
def test_each_clicked_id_has_a_row(store: DirectoryStore, form: Format, spelling: str) -> None:
    rows = spelled(SPELLINGS.get(spelling, list))
    summary = exploded(store, rows, form, "clicked", "query=q,item_id=clicked")
    assert pairs(store) == sorted(CLICKS)
    assert any("clicked: 1, " in note for note in summary.notes)
    assert len({*rows_of(store, "2026-01")["row_id"].to_pylist()}) == 3


def test_shown_ids_are_rows_of_their_own_event_unless_they_were_clicked(store: DirectoryStore) -> None:
    exploded(store, SEARCHES, Format.jsonl, "clicked,shown", "id=sid,query=q,item_id=clicked")
    assert pairs(store, "event", "row_id") == [
        ("lamp", "P1", "clicked", "s1-P1"),
        ("lamp", "P2", "clicked", "s1-P2"),
        ("lamp", "P3", "shown", "s1-P3"),
        ("mug", "007", "clicked", "s2-007"),
        ("pan", "P9", "shown", "s3-P9"),
    ]


def test_lists_of_objects_have_their_parts_as_columns(store: DirectoryStore) -> None:
    rows = [{"at": "2026-01-05", "r": {"q": "lamp", "items": [{"id": "P1", "price": 3}, {"id": "P2", "price": 4}]}}]
    exploded(store, rows, Format.jsonl, "r.items", "query=r.q,item_id=r.items.id")
    assert pairs(store, "r.items.price") == [("lamp", "P1", 3.0), ("lamp", "P2", 4.0)]


def looked(tmp_path: Path, rows: list[dict[str, Any]], form: Format = Format.csv, **options: Any) -> SourceFacts:
    return look(write_input(tmp_path / f"log.{form}", rows, form), ROWS, LookOptions.model_validate(options))


@pytest.mark.parametrize(
    ("form", "spelling"), [*((Format.csv, each) for each in ("JSON", "pipes", "numpy")), (Format.parquet, "a list")]
)
def test_look_proposes_it_and_the_proposal_is_right(
    store: DirectoryStore, tmp_path: Path, form: Format, spelling: str
) -> None:
    facts = looked(tmp_path, spelled(SPELLINGS.get(spelling, list)), form)
    assert facts.mapping == {"query": "q", "item_id": "clicked"}
    words = shlex.split(facts.command)
    assert words[words.index("--explode") + 1] == "clicked,shown"
    assert facts.rows == 5
    exploded(store, spelled(SPELLINGS.get(spelling, list)), form, "clicked,shown", words[-1])
    assert [pair[:2] for pair in pairs(store, "event") if pair[2] == "clicked"] == sorted(CLICKS)


def test_one_clicked_id_beside_a_list_of_the_shown_ones_is_taken_apart_too(tmp_path: Path) -> None:
    rows = [{"at": "2026-01-05", "q": "lamp", "clicked": each, "shown": "P1|P2|P3"} for each in ("P2", "", "P3")]
    facts = looked(tmp_path, rows)
    assert "--explode clicked,shown" in facts.command
    assert facts.rows == 9


def test_a_column_of_ids_that_are_all_lists_is_taken_apart(tmp_path: Path) -> None:
    rows = [{"at": "2026-01-05", "q": f"lamp {n}", "product_id": json.dumps([f"P{n}"])} for n in range(3)]
    assert "--explode product_id" in looked(tmp_path, rows).command
    pipes = [row | {"product_id": f"DE|{n}"} for n, row in enumerate(rows)]
    assert "--explode" not in looked(tmp_path, pipes).command


@pytest.mark.parametrize("write", SPELLINGS.values(), ids=SPELLINGS)
def test_lists_that_are_mapped_as_one_id_are_named(store: DirectoryStore, write: Any) -> None:
    summary = exploded(store, spelled(write), Format.csv, "shown", "query=q,item_id=clicked")
    named = [each.text for each in summary.problems if each.kind == "lists"]
    assert bool(named) == (write(["a", "b"]) not in ("a b", "a, b"))
    assert all("--explode clicked" in each for each in named)


@pytest.mark.parametrize(
    "change",
    [
        {"clicked": "P1", "shown": "P2"},
        {"clicked": 1, "shown": 0},
        {"clicked": "", "tags": "a|b|c"},
        {"clicked": "", "shown": "P1|P2"},
        {"clicks": 2, "shown": "P1|P2"},
    ],
    ids=["one id each", "counts", "other lists", "shown alone", "counts beside lists"],
)
def test_look_does_not_propose_it_for_other_columns(tmp_path: Path, change: dict[str, Any]) -> None:
    rows = [{"at": each["at"], "q": each["q"], "n": number, **change} for number, each in enumerate(SEARCHES)]
    rows = [each | ({"shown": f"{each['shown']}{each['n']}"} if "|" in str(each.get("shown")) else {}) for each in rows]
    facts = looked(tmp_path, rows)
    assert "--explode" not in facts.command
    assert facts.mapping.get("item") != "shown"


@pytest.mark.parametrize(
    ("rows", "explode", "says"),
    [
        (SEARCHES, "gone", r"log\.\w+: missing column 'gone', which --explode names; the columns are .*clicked"),
        (
            [each | {"event": "x"} for each in SEARCHES],
            "clicked,shown",
            "it has a column 'event'.*--explode clicked alone",
        ),
        ([each | {"clicked": []} for each in SEARCHES], "clicked", "no row has a value in clicked"),
    ],
)
@pytest.mark.parametrize("form", [Format.jsonl, Format.parquet])
def test_columns_that_give_no_rows_are_named(
    store: DirectoryStore, form: Format, rows: list[dict[str, Any]], explode: str, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        exploded(store, rows, form, explode, "query=q,item_id=clicked")


def test_an_option_that_names_no_column_is_refused() -> None:
    for text in ("", "a,,b", "a,a"):
        with pytest.raises(ConfigError, match="with lists of ids"):
            parse_explode(text)


def test_values_are_kept_once_in_their_order_and_missing_ones_left_out() -> None:
    assert members(["b", None, "a", "b", " "]) == ["b", "a"]
    assert members("b|a||NaN") == ["b", "a"]
    assert members([9007199254740993, 1]) == [9007199254740993, 1]
    assert [members(each) for each in (None, "", "[]", "{}", 7)] == [[], [], [], [], [7]]

"""Sources that are nearly right: `look` and `ingest` name the fault and the way to write it, look shows the rest."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import ROWS
from tasks.data.ingest import IngestOptions, ingest
from tasks.data.look import LookOptions, look
from tasks.data.mapping import parse_map
from tasks.foundation.errors import ConfigError, DataError

MAP = parse_map("query=q,item=title,item_id=sku")
DAYS = [dt.date(2026, 9, 1) + dt.timedelta(days=day) for day in range(25)]
BEFORE = dt.date(1899, 12, 30)


def write_log(path: Path, times: list[str]) -> Path:
    lines = [f"{time},query {number},title {number % 7},P{number % 7}" for number, time in enumerate(times)]
    path.write_text("\n".join(["at,q,title,sku", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("times", "way_out"),
    [
        ([f"{(day - BEFORE).days}.5" for day in DAYS], "a day number of Excel, 2026-09-01; format the column"),
        ([f"{day:%y-%m-%d}" for day in DAYS], "two digits; write four, as in 2026-09-01"),
        ([f"{day} 10:00:00 CEST" for day in DAYS], "CEST is the name of a zone.*write its offset, as in \\+02:00"),
        ([f'"{day:%a, %d %b %Y} 10:00:00 CEST"' for day in DAYS], "CEST is the name of a zone"),
        ([f"{day:%d %b %Y} 9:30 PM" for day in DAYS], "half a day; write them from 00 to 23"),
        ([f"{day} 9:30 pm" for day in DAYS], "half a day; write them from 00 to 23"),
        ([f"{day}T10:00:00[Europe/Berlin]" for day in DAYS], "Europe/Berlin has two offsets in a year; write the one"),
        ([f"{day.day:02}:15" for day in DAYS], "has no date; put it before the time"),
    ],
)
def test_a_column_of_near_times_is_named_with_the_way_to_write_it(
    tmp_path: Path, times: list[str], way_out: str
) -> None:
    source = write_log(tmp_path / "log.csv", times)
    facts = look(source, ROWS, LookOptions())
    assert "--dayfirst" not in facts.command
    said = [each.text for each in facts.problems if each.column == "at"]
    assert re.search(way_out, said[0])
    with pytest.raises(DataError, match=f"row 1, column 'at': .*{way_out}"):
        ingest(DirectoryStore(tmp_path / "ws"), source, None, "at", SpanKind.month, MAP, options=IngestOptions())


def test_dates_with_short_years_that_begin_with_the_day_are_still_read(tmp_path: Path) -> None:
    facts = look(write_log(tmp_path / "log.csv", [f"{day:%d-%m-%y}" for day in DAYS]), ROWS, LookOptions())
    assert facts.command.endswith("--dayfirst")
    assert facts.first is not None
    assert facts.first.startswith("2026-09-01")


def test_look_shows_a_file_with_lines_that_can_not_be_read(tmp_path: Path) -> None:
    source = write_log(tmp_path / "log.csv", [day.isoformat() for day in DAYS])
    lines = source.read_bytes().splitlines()
    source.write_bytes(b"\n".join([*lines[:3], b"2026-09-02,caf\xe9,x,P1", *lines[3:], b"2026-09-30,a,b,c,d", b""]))
    facts = look(source, ROWS, LookOptions())
    assert (facts.rows, facts.unreadable) == (25, 2)
    assert [f"{source}, row 3" in each.text for each in facts.problems if each.kind == "unreadable"] == [True]
    words = facts.command.split()
    assert "--set-aside" in words
    aside = tmp_path / "aside"
    store = DirectoryStore(tmp_path / "ws")
    made = ingest(store, source, None, "at", SpanKind.month, MAP, options=IngestOptions(set_aside=aside))
    assert (made.rows, made.set_aside) == (25, 2)


def test_a_row_that_is_set_aside_keeps_its_own_reason(tmp_path: Path) -> None:
    source, aside = tmp_path / "log.csv", tmp_path / "aside"
    rows = [f"{day},a lamp {number},Lamp,P{number},too late,no" for number, day in enumerate([*DAYS, "soon"])]
    source.write_text("\n".join(["at,q,title,sku,why,why_", *rows, ""]))
    ingest(
        DirectoryStore(tmp_path / "ws"), source, None, "at", SpanKind.month, MAP, options=IngestOptions(set_aside=aside)
    )
    found = json.loads(aside.read_text())
    assert (found["at"], found["why"], found["why_"]) == ("soon", "too late", "no")
    assert "'soon'" in found["why__"]


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("log.zip", "log.zip is an archive; unpack it, and name the folder: python -m zipfile -e {}"),
        ("log.csv.zip", "python -m zipfile -e {}"),
        ("logs.tar.gz", "tar xf {}"),
        ("log.csv", "a JSON array, not csv; each line must be one JSON object: jq -c"),
    ],
)
def test_a_file_of_another_form_names_the_command_that_makes_rows_of_it(
    tmp_path: Path, name: str, way_out: str
) -> None:
    path = tmp_path / name
    path.write_text('[{"at": "2026-11-01"}, {"at": "2026-11-02"}]')
    with pytest.raises((ConfigError, DataError)) as refused:
        look(path, ROWS, LookOptions())
    assert way_out.format(path) in str(refused.value)


def test_a_missing_one_of_many_columns_is_answered_with_the_nearest_and_a_count(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(",".join(["searched_at", "q", "title", "sku", *(f"c{n}" for n in range(3000))]) + "\n")
    path.write_text(path.read_text() + ",".join(["1"] * 3004) + "\n")
    with pytest.raises(DataError, match=r"c0, .* and 2,984 more") as refused:
        ingest(DirectoryStore(tmp_path / "ws"), path, None, "search_at", SpanKind.month, MAP, options=IngestOptions())
    assert len(str(refused.value)) < 600


def test_pairs_that_semicolons_separate_are_answered_with_commas() -> None:
    with pytest.raises(ConfigError, match="--map query=q,item=title"):
        parse_map("query=q;item=title")

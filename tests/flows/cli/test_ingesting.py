"""`millrace ingest`: spans from a source, its questions, and bad input that leaves nothing."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from tests.support.processes.command import Command


def source(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "reviews.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


REVIEW = {"when": "2022-11-03T10:00:00Z", "text": "keeps water hot", "title": "Kettle", "stars": 5}
INGEST = (
    "--time-column",
    "when",
    "--span",
    "quarter",
    "--map",
    "query=text,item=title,label=stars",
)


def test_ingest_cuts_a_source_into_spans(millrace: Command, tmp_path: Path) -> None:
    rows = source(tmp_path, REVIEW, {**REVIEW, "when": "2023-01-03", "text": "broke soon"})
    workspace = tmp_path / "workspace"
    result = millrace("ingest", "--source", str(rows), "--workspace", str(workspace), *INGEST, "--json")
    assert result.code == 0
    assert [span["name"] for span in json.loads(result.out)["spans"]] == ["2022-Q4", "2023-Q1"]
    again = millrace("ingest", "--source", str(rows), "--workspace", str(workspace), *INGEST)
    assert re.findall(r"^(\S+) +v1 +1 +as before", again.out, re.M) == ["2022-Q4", "2023-Q1"]


def test_a_span_that_is_there_with_other_rows_is_a_question_with_two_answers(millrace: Command, tmp_path: Path) -> None:
    ids = ("--map", "query=text,item=title,id=id")
    call = functools.partial(millrace, "ingest", "--workspace", str(tmp_path / "workspace"), *INGEST, *ids)
    first = source(tmp_path, *({**REVIEW, "id": number} for number in range(4)))
    assert call("--source", str(first)).code == 0
    part = source(tmp_path, {**REVIEW, "id": 2, "text": "leaks"}, {**REVIEW, "id": 9})
    asked = call("--source", str(part))
    assert (asked.code, asked.out) == (78, "")
    assert "2022-Q4: v1 has 4 rows, the source 2: 1 changed, 1 new, 3 of v1 missing" in asked.err
    assert re.findall(r"^  (--\w+)", asked.err, re.M) == ["--replace", "--merge"]
    assert call("--source", str(part), "--merge", "--replace").code == 78
    merged = call("--source", str(part), "--merge")
    assert re.search(r"^2022-Q4 +v2 +5 +new: 1 changed, 1 added, 0 gone *$", merged.out, re.M), merged.out
    replaced = call("--source", str(part), "--replace")
    assert re.search(r"^2022-Q4 +v3 +2 +new: 0 changed, 0 added, 3 gone *$", replaced.out, re.M), replaced.out


def test_what_is_said_about_a_source_reaches_its_reading(millrace: Command, tmp_path: Path) -> None:
    rows = source(tmp_path, REVIEW, {**REVIEW, "when": "2004-01-01"}, {**REVIEW, "when": "2024-01-01"})
    aside = tmp_path / "aside.jsonl"
    called = ["ingest", "--source", str(rows), "--workspace", str(tmp_path / "workspace"), *INGEST]
    days = ["--not-before", "2022-01-01", "--not-after", "2022-12-31"]
    assert "2004-01-01 is before 2022-01-01" in millrace(*called, *days).err
    result = millrace(*called, *days, "--set-aside", str(aside))
    assert (result.code, len(aside.read_text().splitlines())) == (0, 2)
    assert "note: rows" in result.out
    assert "2026-11-20" in millrace(*called, "--not-before", "January").err
    assert "jsonl has none" in millrace(*called, "--delimiter", "tab").err


def test_ingest_reads_what_a_european_excel_exports(millrace: Command, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(
        "sep=;\nwhen;text;title;stars;price\n20.11.2022;hot;Kettle;ja;43,49\n21.11.2022;cold;Kettle;nein;7\n"
    )
    called = ["ingest", "--source", str(file), "--workspace", str(tmp_path / "workspace"), *INGEST, "--decimal", ","]
    assert millrace(*called, "--dayfirst", "--true", "ja", "--false", "nein").code == 0
    (manifest,) = (tmp_path / "workspace").glob("spans/2022-Q4/v1/MANIFEST.json")
    facts = json.loads(manifest.read_text())["facts"]
    assert (facts["columns"]["price"], facts["labels"]) == ("double", 2)
    assert "--decimal ';'" in millrace(*called, "--decimal", ";").err


def test_ingest_shows_rows_columns_and_likely_mistakes(millrace: Command, tmp_path: Path) -> None:
    rows = [{**REVIEW, "text": f"hot {n}", "title": f"B{n:03}", "note": None if n else "x"} for n in range(9)]
    called = ["ingest", "--source", str(source(tmp_path, *rows)), "--workspace", str(tmp_path / "workspace"), *INGEST]
    result = millrace(*called)
    columns = "when (time, text), text (query, text), title (item, text), stars (label, number), note (text, 8 empty)"
    assert f"9 rows in 1 span, from 1 file\ncolumns: {columns}\ncheck: column 'title', mapped as item" in result.out
    source(tmp_path, REVIEW)
    assert "check: no likely mistake" in millrace(*called, "--replace").out


def test_bad_input_names_file_and_column_and_leaves_nothing(millrace: Command, tmp_path: Path) -> None:
    rows = source(tmp_path, {**REVIEW, "when": "last week"})
    result = millrace("ingest", "--source", str(rows), "--workspace", str(tmp_path / "workspace"), *INGEST)
    assert result.code == 65
    assert result.err.splitlines()[-1].startswith(f"DATA: {rows}, row 1")
    assert not list((tmp_path / "workspace").rglob("*.parquet"))

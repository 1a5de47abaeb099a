"""The pages of a run's data: its columns next to the span before, and the rows that were set apart."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from flows.cli.serving.pages import Pages
from flows.presentation.history.page import history_html
from flows.presentation.run.data_page import data_html
from flows.presentation.run.report import run_html, write_run_report
from flows.presentation.run.rows_page import OTHERWISE, rows_html, way_out
from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.profiles import SpanProfile
from tasks.contracts.results import StageResult
from tasks.contracts.workspace import BAD_ROWS, DATA_PAGE, RESULT, WAITING_ROWS
from tests.support.pages.html import Page
from tests.support.workspace.past import week, write_past
from tests.support.workspace.profiled import SECRET, Profiled, write_profiled


@pytest.fixture
def known(tmp_path: Path) -> Profiled:
    return write_profiled(tmp_path, 40)


def test_each_column_stands_next_to_the_span_before_and_its_drift_next_to_its_limit(known: Profiled) -> None:
    page = Page(data_html(known.store, known.second) or b"")
    assert page.row("brand") == ["brand", "acme", "90.0 %", "50.0 %", "0.5000", "0.2500", "! warning"]
    rows = [row for row in page.rows if row[0] == "brand"]
    assert rows[1] == ["brand", "category", "string", "12.5 %", "12.5 %", "20", "10", "acme 50.0 %"]
    lengths = [row[1:] for row in page.rows if row[0] == "query length"]
    assert [(row[0], row[4]) for row in lengths] == [(week(1), "13"), (week(0), "12")]
    assert "beyond the limit: brand" in page.text
    assert "Rows by day" in page.text
    assert "98 % are between" in page.text
    assert data_html(known.store, known.first) is not None


def test_a_run_over_many_spans_shows_the_newest_each_by_itself(known: Profiled) -> None:
    key = RESULT.key(run=known.second, stage="validate")
    result = StageResult.model_validate_json(known.store.read(key))
    assert isinstance(result.outcome, ValidateOutcome)
    written = result.outcome.profiles[week(1)]
    profiles = {}
    for number in range(1, 6):
        profiles[week(number)] = written.replace(week(1), week(number))
        profile = SpanProfile.model_validate_json(known.store.read(written))
        known.store.write(profiles[week(number)], profile.model_copy(update={"span": week(number)}).to_json())
    known.store.write(profiles[week(4)], b"{")
    outcome = result.outcome.model_copy(update={"profiles": profiles})
    known.store.write(key, result.model_copy(update={"outcome": outcome}).to_json())
    page = Page(data_html(known.store, known.second) or b"")
    assert [each for each in page.ids if each.startswith("columns")] == [f"columns-{week(5)}", f"columns-{week(3)}"]
    assert "The newest 3 of 5 spans of the run." in page.text
    assert f"{week(4)}.json" in page.text


def test_a_run_without_profiles_has_no_page_of_its_data(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    (key,) = write_past(store, 1)
    assert data_html(store, key) is None
    assert write_run_report(store, key) is not None
    assert not store.exists(DATA_PAGE.key(run=key))


def test_the_page_is_written_with_the_report_and_linked_from_it_and_from_the_history(known: Profiled) -> None:
    write_run_report(known.store, known.second)
    assert b"2026-W02: the data" in known.store.read(DATA_PAGE.key(run=known.second))
    assert "data.html" in [link["href"] for link in Page(run_html(known.store, known.second)).all("a")]
    history = Page(history_html(known.store, dt.datetime(2026, 3, 4, tzinfo=dt.UTC)))
    assert f"../runs/{known.second}/data.html" in [link["href"] for link in history.all("a")]


def test_rows_set_apart_are_grouped_by_reason_with_their_number_and_a_way_out(known: Profiled) -> None:
    page = Page(rows_html(known.store, known.second) or b"")
    assert page.row("item is null")[1:3] == ["39", "0.1 %"]
    assert "Fill it in the source" in page.row("item is null")[3]
    shown = [row[0] for row in page.rows if row[0].startswith("r")]
    assert shown.count("r0") == 3  # in both of its groups, and among those that wait
    assert SECRET in page.text
    assert "lamp <b>3</b>" in page.text  # as text, not as a tag
    assert "Waiting for their items" in page.text
    assert f"spans/{week(1)}/v1" in page.text
    assert "\u202e" not in page.text
    assert way_out("something else") == OTHERWISE


def test_a_large_quarantine_is_sampled_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.runs.bad_rows.LOOKED_AT", 1_000)
    known = write_profiled(tmp_path, 1_500)
    page = Page(rows_html(known.store, known.second) or b"")
    assert "200 of them are below" in page.text
    assert len({row[0] for row in page.rows if row[0][:1] == "r" and row[0][1:].isdigit()}) == 200
    monkeypatch.setattr("tasks.runs.bad_rows.MOST_BYTES", 10)
    assert "too many to be fetched" in Page(rows_html(known.store, known.second) or b"").text


def test_rows_that_were_deleted_are_shown_nowhere(known: Profiled) -> None:
    write_run_report(known.store, known.second)
    pages = Pages(known.store)
    served = pages.page(f"/runs/{known.second}/rows.html")
    assert served is not None
    assert SECRET.encode() in served.body
    known.store.delete(BAD_ROWS.key(run=known.second, stage="validate", attempt=1))
    known.store.delete(WAITING_ROWS.key(run=known.second, folder="w"))
    again = pages.page(f"/runs/{known.second}/rows.html")
    assert again is not None
    assert SECRET.encode() not in again.body
    assert "quarantine" in Page(again.body).text
    kept = [key for key in known.store.list("runs") if SECRET.encode() in known.store.read(key)]
    assert kept == []
    assert pages.page("/runs/nope/rows.html") is None
    assert pages.page(f"/runs/{known.second}/data.html") is not None
    pages.close()

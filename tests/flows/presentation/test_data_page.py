"""The pages of a run's data: its columns next to the span before, and the rows that were set apart.

Rows that were not fit to train on, on the page of their run and on the page of their stage.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from flows.cli.serving.pages import Pages
from flows.presentation.history.page import history_html
from flows.presentation.model import Cell, Section
from flows.presentation.run.data_page import data_html
from flows.presentation.run.pages import stage_page
from flows.presentation.run.report import run_html, run_page, shortened_page, write_run_report
from flows.presentation.run.rows_page import OTHERWISE, rows_html, way_out
from flows.presentation.stages.columns import drift_figures
from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import Check, StageResult, ValidateOutcome
from tasks.contracts.profiles import Bin, ColumnDrift, SampleRow, SpanProfile
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import BAD_ROWS, DATA_PAGE, RESULT, WAITING_ROWS
from tasks.foundation.errors import DataError, FailureClass
from tasks.runs.plan import read_plan
from tasks.runs.run import read_run
from tasks.runs.snapshot import Snapshot
from tests.support.pages.golden import Golden
from tests.support.pages.shown import Page, part, written
from tests.support.workspace.past import week, write_past, write_run
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
    assert "newest 3 of 5 spans" in page.text
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


def test_rows_set_apart_are_grouped_by_reason_with_their_number_and_a_way_out(known: Profiled, golden: Golden) -> None:
    page = Page(rows_html(known.store, known.second) or b"")
    assert page.row("item is null")[1:3] == ["39", "0.1 %"]
    golden(page.lines)
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
    assert "200 of them" in page.text
    assert len({row[0] for row in page.rows if row[0][:1] == "r" and row[0][1:].isdigit()}) == 200
    monkeypatch.setattr("tasks.runs.bad_rows.MOST_BYTES", 10)
    assert "too many" in Page(rows_html(known.store, known.second) or b"").text


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


BINS = (Bin(label="below 10", earlier=0.75, now=0.25), Bin(label="10 and more", earlier=0.25, now=0.75))
PRICE = ColumnDrift(name="price", psi=1.1, limit=0.3, severity="warning", bins=BINS)
CALM = ColumnDrift(name="label", psi=0.1, limit=0.3, severity="warning", bins=BINS)
REPORT = ValidateOutcome(
    rows=(),
    rows_in=100,
    rows_clean=60,
    rows_quarantined=40,
    reasons={"item is null": 30, "query is empty": 10},
    quarantine="runs/x/quarantine.parquet",
    checks=(
        Check(name="columns present", passed=True, severity="critical", observed=6.0, sentence="All are there."),
        Check(name="quarantined share", passed=False, severity="critical", observed=0.4, sentence="40 of 100 are bad."),
    ),
    drifts=(PRICE, CALM),
    samples=(SampleRow(reason="item is null", span="2026-W40", values={"row_id": "r7", "item": ""}),),
)
MESSAGE = "span 2026-W40 is not fit to train on:\n- quarantined share: 40 of 100 are bad.\nBad rows by reason: ..."


@pytest.fixture
def key(store: DirectoryStore) -> str:
    """A run that the checks of its rows stopped."""
    key = write_run(store, 1, "Failed", FailureClass.DATA)
    store.write(f"runs/{key}/validate/attempt-1/report.json", REPORT.to_json())
    return key


def test_the_report_shows_checks_reasons_and_rows_once(store: DirectoryStore, key: str, golden: Golden) -> None:
    page = run_page(store, key)
    (failures,) = [section for section in page.sections if section.id == "failures"]
    data = part(failures, "60 of 100 rows are clean")
    golden(written(data))
    assert [figure.title for figure in data.figures] == ["Drift of price"]
    assert run_html(store, key).decode().count("40 of 100 are") == 1
    assert f"runs/{key}/rows.html" in [cell.key for cell in page.near]
    apart = rows_html(store, key)
    assert apart is not None
    assert b"30.0 %" in apart  # the counts, and the file that is missing here
    assert b"runs/x" in apart


def test_the_short_form_leaves_out_the_checks_that_passed(store: DirectoryStore, key: str) -> None:
    short = shortened_page(read_run(Snapshot(store), key), run_page(store, key))
    words = [cell.text for section in short.sections for row in shown(section) for cell in row]
    assert "quarantined share" in words
    assert "columns present" not in words
    assert "row_id: r7, item: null" in words
    assert [section.title for section in short.sections] == ["Failed attempts", "Stages", "More"]


def shown(section: Section) -> list[tuple[Cell, ...]]:
    """The rows of all tables of a section and its parts."""
    own = [row for each in section.tables for row in each.rows]
    return own + [row for part in section.parts for row in shown(part)]


def test_the_page_of_the_stage_shows_them_too(store: DirectoryStore, key: str, golden: Golden) -> None:
    made = stage_page(store, read_plan(store, key), Stage.validate, DataError(MESSAGE))
    golden(written(made, parts=False))


def test_without_a_report_the_message_is_whole(store: DirectoryStore, key: str) -> None:
    (Path(store.uri) / "runs" / key / "validate" / "attempt-1" / "report.json").unlink()
    assert stage_page(store, read_plan(store, key), Stage.validate, DataError(MESSAGE)).quote == MESSAGE


def test_a_report_that_is_damaged_is_named(store: DirectoryStore, key: str) -> None:
    store.write(f"runs/{key}/validate/attempt-1/report.json", b"{}")
    page = run_page(store, key)
    assert any("report.json" in line for box in page.boxes for line in box.lines)


def test_a_drift_is_drawn_with_what_moved_most(golden: Golden) -> None:
    (figure,) = drift_figures([PRICE])
    golden(figure.caption, figure.alt)

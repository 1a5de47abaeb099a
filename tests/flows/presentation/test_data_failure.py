"""Rows that were not fit to train on, on the page of their run and on the page of their stage."""

from pathlib import Path

import pytest

from flows.presentation.model import Cell, Section
from flows.presentation.run.pages import stage_page
from flows.presentation.run.report import run_html, run_page
from flows.presentation.run.rows_page import rows_html
from flows.presentation.run.short import shortened_page
from flows.presentation.stages import drift
from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import Check, ValidateOutcome
from tasks.contracts.profiles import Bin, ColumnDrift, SampleRow
from tasks.contracts.stages import Stage
from tasks.foundation.errors import DataError, FailureClass
from tasks.runs.plan import read_plan
from tasks.runs.run import read_run
from tasks.runs.snapshot import Snapshot
from tests.support.pages.sections import part, rows
from tests.support.workspace.past import write_run

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


def test_the_report_shows_checks_reasons_and_rows_once(store: DirectoryStore, key: str) -> None:
    page = run_page(store, key)
    (failures,) = [section for section in page.sections if section.id == "failures"]
    data = part(failures, "60 of 100 rows are clean")
    assert rows(data) == [
        ["item is null", "30", "30.0 %"],
        ["query is empty", "10", "10.0 %"],
        ["item is null", "2026-W40", "row_id: r7, item: null"],
        ["quarantined share", "✕ refused", "40 of 100 are bad."],
        ["columns present", "✓ passed", "All are there."],
    ]
    assert [figure.title for figure in data.figures] == ["Drift of price"]
    assert run_html(store, key).decode().count("40 of 100 are bad.") == 1
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


def test_the_page_of_the_stage_shows_them_too(store: DirectoryStore, key: str) -> None:
    made = stage_page(store, read_plan(store, key), Stage.validate, DataError(MESSAGE))
    assert made.quote == "span 2026-W40 is not fit to train on; the checks say why."
    assert ["quarantined share", "✕ refused", "40 of 100 are bad."] in rows(made)


def test_without_a_report_the_message_is_whole(store: DirectoryStore, key: str) -> None:
    (Path(store.uri) / "runs" / key / "validate" / "attempt-1" / "report.json").unlink()
    assert stage_page(store, read_plan(store, key), Stage.validate, DataError(MESSAGE)).quote == MESSAGE


def test_a_report_that_is_damaged_is_named(store: DirectoryStore, key: str) -> None:
    store.write(f"runs/{key}/validate/attempt-1/report.json", b"{}")
    page = run_page(store, key)
    assert any("report.json" in line for box in page.boxes for line in box.lines)


def test_a_drift_is_drawn_with_what_moved_most() -> None:
    (figure,) = drift.figures([PRICE])
    assert figure.caption == "population stability index 1.1000, beyond its limit of 0.3000"
    assert "Most moved below 10, from 75.0 % to 25.0 % of the rows." in figure.alt

"""The pages of a run's data: its columns next to the span before, and the rows that were set apart."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli.serving.pages import Pages
from flows.presentation.history.page import history_html
from flows.presentation.run.data_page import data_html
from flows.presentation.run.report import run_html, write_run_report
from flows.presentation.run.rows_page import OTHERWISE, rows_html, way_out
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.outcomes import Check
from tasks.contracts.profiles import Bin, ColumnDrift, ColumnProfile, Histogram, Shared, SpanProfile
from tasks.contracts.references import RowsRef, SpanRef
from tasks.contracts.results import StageResult
from tasks.contracts.runs import RunPlan
from tasks.contracts.workspace import BAD_ROWS, DATA_PAGE, PLAN, PROFILE, RESULT, WAITING_ROWS
from tests.support.pages.html import Page
from tests.support.workspace.past import week, write_past

SECRET = "ada.lovelace@example.org"  # in a row that was set apart


class Known(NamedTuple):
    """Two runs with profiles; the second has rows set apart and rows that wait."""

    store: DirectoryStore
    first: str
    second: str


def column(name: str, kind: Any, **facts: Any) -> ColumnProfile:
    empty = {"type": "string", "null_share": 0.0, "distinct": 5, "quantiles": {}, "top": ()}
    return ColumnProfile(name=name, kind=kind, **empty | facts)


def profile(number: int, rows: int, length: float) -> SpanProfile:
    query = column(
        "query", "text", quantiles={"0": 1.0, "0.5": length, "1": 99.0},
        histogram=Histogram(edges=(0.0, 10.0, 20.0), shares=(0.25, 0.75)), top=(Shared(value="de", share=0.75),),
    )  # fmt: skip
    brand = column("brand", "category", null_share=0.125, distinct=rows // 10, top=(Shared(value="acme", share=0.5),))
    times = {f"2026-01-0{day}": rows // 2 for day in (1, 2)}
    return SpanProfile(span=week(number), version=1, rows=rows, sampled=rows, columns=(query, brand), times=times)


def known_with(folder: Path, quarantined: int) -> Known:
    store = DirectoryStore(folder / "store")
    first, second = write_past(store, 2)
    for number, key in enumerate((first, second)):
        outcome: dict[str, Any] = {
            "profiles": {week(number): PROFILE.key(run=key, stage="validate", attempt=1, span=week(number))}
        }
        store.write(outcome["profiles"][week(number)], profile(number, 100 * (number + 1), 12.0 + number).to_json())
        if number:
            drift = ColumnDrift(
                name="brand", psi=0.5, limit=0.25, severity="warning", bins=(Bin(label="acme", earlier=0.9, now=0.5),)
            )  # fmt: skip
            check = Check(name="brand drift", passed=False, severity="warning", observed=0.5, sentence="It drifted.")
            outcome |= {"drifts": (drift,), "checks": (check,), "rows_quarantined": quarantined}
            outcome |= {"reasons": {"item is null": quarantined - 1, "price below 0": 1}}
            outcome |= {
                "quarantine": _rows(store, folder, BAD_ROWS.key(run=key, stage="validate", attempt=1), quarantined)
            }
            outcome |= {"waiting": _rows(store, folder, WAITING_ROWS.key(run=key, folder="w"), 3, waits=True)}
            ref = RowsRef(
                span=SpanRef(name=week(0), version=1), prefix=f"runs/{first}/validate/rows/{week(0)}-ab", rows=9
            )
            plan = RunPlan.model_validate_json(store.read(PLAN.key(run=key))).model_copy(update={"history": (ref,)})
            store.write(PLAN.key(run=key), plan.to_json())
        result = StageResult.model_validate_json(store.read(RESULT.key(run=key, stage="validate")))
        changed = result.model_copy(update={"outcome": result.outcome.model_copy(update=outcome)})
        store.write(RESULT.key(run=key, stage="validate"), changed.to_json())
    return Known(store, first, second)


def _rows(store: DirectoryStore, folder: Path, prefix: str, count: int, waits: bool = False) -> str:
    texts = [SECRET if number == 1 else f"lamp <b>{number}</b>" for number in range(count)]
    rows = [{"row_id": f"r{n}", "query": query, "item": None, "price": -1.0} for n, query in enumerate(texts)]
    table = pa.Table.from_pylist(rows)
    if waits:
        table = table.append_column("ingested_in", pa.array(["spans/2026-W01/v1"] * count))
    else:
        reasons = ["item is null; price below 0", *["item is null"] * (count - 2), "price below 0 \u202e"]
        table = table.append_column("reason", pa.array(reasons)).append_column("span", pa.array([week(1)] * count))
    made = folder / ("waiting" if waits else "bad")
    made.mkdir()
    pq.write_table(table, made / "quarantine.parquet")
    commit(store, prefix, made, "waiting" if waits else "quarantine", {"rows": count})
    return prefix if waits else f"{prefix}/quarantine.parquet"


@pytest.fixture
def known(tmp_path: Path) -> Known:
    return known_with(tmp_path, 40)


def test_each_column_stands_next_to_the_span_before_and_its_drift_next_to_its_limit(known: Known) -> None:
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


def test_a_run_without_profiles_has_no_page_of_its_data(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    (key,) = write_past(store, 1)
    assert data_html(store, key) is None
    assert write_run_report(store, key) is not None
    assert not store.exists(DATA_PAGE.key(run=key))


def test_the_page_is_written_with_the_report_and_linked_from_it_and_from_the_history(known: Known) -> None:
    write_run_report(known.store, known.second)
    assert b"2026-W02: the data" in known.store.read(DATA_PAGE.key(run=known.second))
    assert "data.html" in [link["href"] for link in Page(run_html(known.store, known.second)).all("a")]
    history = Page(history_html(known.store, dt.datetime(2026, 3, 4, tzinfo=dt.UTC)))
    assert f"../runs/{known.second}/data.html" in [link["href"] for link in history.all("a")]


def test_rows_set_apart_are_grouped_by_reason_with_their_number_and_a_way_out(known: Known) -> None:
    page = Page(rows_html(known.store, known.second) or b"")
    assert page.row("item is null")[1:3] == ["39", "0.1 %"]
    assert "Fill it in the source" in page.row("item is null")[3]
    shown = [row[0] for row in page.rows if row[0].startswith("r")]
    assert shown.count("r0") == 3  # in both of its groups, and among those that wait
    assert SECRET in page.text
    assert "lamp <b>3</b>" in page.text  # as text, not as a tag
    assert "Waiting for their items" in page.text
    assert "\u202e" not in page.text
    assert way_out("something else") == OTHERWISE


def test_a_large_quarantine_is_sampled_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.runs.bad_rows.LOOKED_AT", 1_000)
    known = known_with(tmp_path, 1_500)
    page = Page(rows_html(known.store, known.second) or b"")
    assert "200 of them are below" in page.text
    assert len({row[0] for row in page.rows if row[0][:1] == "r" and row[0][1:].isdigit()}) == 200
    monkeypatch.setattr("tasks.runs.bad_rows.MOST_BYTES", 10)
    assert "too many to be fetched" in Page(rows_html(known.store, known.second) or b"").text


def test_rows_that_were_deleted_are_shown_nowhere(known: Known) -> None:
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

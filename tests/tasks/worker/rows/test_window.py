"""A window against the spans before it: rows that are missing or were there already, drift, and another schema."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from configs.schema.validation import BeforeConfig
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import DataError
from tasks.worker import validate
from tasks.worker.rows import window
from tasks.worker.rows.holdout import AGAIN, MISSING, judge_before
from tasks.worker.rows.window import read_earlier
from tests.support.pages.golden import Golden
from tests.support.workspace.jobs import change_rows, make_workspace, tiny_config, with_held
from tests.support.workspace.spans import MARCH, check, failed, job, rows, validated, write_span

ROWS = 400
CONFIG = tiny_config("evaluate.holdout_share=0.2")


def asked_in(month: int) -> Callable[[pa.Table], pa.Table]:
    """Queries of the month's own, but for each tenth."""

    def change(table: pa.Table) -> pa.Table:
        some = [f"query {row}" if row % 10 == 0 else f"query {row} of {month}" for row in range(table.num_rows)]
        return table.set_column(table.column_names.index("query"), "query", pa.array(some))

    return change


@pytest.mark.parametrize(
    ("month", "rows", "failed"),
    [
        (4, ROWS, {}),
        (4, ROWS // 2, {}),
        (4, ROWS // 4, {MISSING: "warning"}),
        (3, ROWS, {AGAIN: "critical"}),
    ],
)
def test_a_window_is_held_against_the_spans_before(
    tmp_path: Path, month: int, rows: int, failed: dict[str, str]
) -> None:
    store, first = make_workspace(tmp_path, rows=ROWS)
    history = [change_rows(store, first, f"2026-0{each}", asked_in(each), tmp_path) for each in (2, 3)]
    now = change_rows(store, first, "2026-04", lambda table: asked_in(month)(table).slice(0, rows), tmp_path)
    files = [store.path(now.prefix) / "part-00000.parquet"]
    checks = judge_before(store, with_held(store, CONFIG, *history), {"2026-04": now.rows}, files, BeforeConfig())
    assert {check.name: check.severity for check in checks if not check.passed} == failed


def test_a_second_span_is_not_judged(tmp_path: Path) -> None:
    store, first = make_workspace(tmp_path, rows=ROWS)
    checks = judge_before(store, with_held(store, CONFIG, first), {"2026-02": 1}, [], BeforeConfig())
    assert [(check.passed, check.observed) for check in checks] == [(True, None)] * 2


def test_a_quiet_span_within_a_first_window_is_named(tmp_path: Path, golden: Golden) -> None:
    """Its own number counts, not the mean of the window."""
    store, first = make_workspace(tmp_path, rows=ROWS)
    window = {f"2026-0{month}": 41 if month == 6 else ROWS for month in range(2, 9)}
    missing = judge_before(store, with_held(store, CONFIG, first), window, [], BeforeConfig())[0]
    assert not missing.passed
    golden(missing.sentence)


STOCK = {"stock": pa.float64()}


def test_the_drift_of_a_column_stops_the_run_where_that_is_asked(store: DirectoryStore, tmp_path: Path):
    history = validated(store, tmp_path, rows(390))
    write_span(store, tmp_path, MARCH, rows(195, start=390, price=950.0))
    critical = ["validate.drift.columns={price: {severity: critical}}"]
    with pytest.raises(DataError, match=r"(?s)price drift: .*: none"):
        validate.judge(job(store, history=[history], overrides=critical))


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        ({}, STOCK, "stock is new."),
        (STOCK, {}, "stock is gone."),
        (STOCK, {"stock": pa.int64()}, "stock is int64, it was double."),
    ],
)
def test_another_schema_is_described(
    store: DirectoryStore, tmp_path: Path, before: dict[str, Any], now: dict[str, Any], sentence: str
):
    history = validated(store, tmp_path, rows(390), more=before)
    write_span(store, tmp_path, MARCH, rows(195, start=390), **now)
    outcome = validate.judge(job(store, history=[history]))
    assert failed(outcome) == ["columns as before"]
    assert check(outcome, "columns as before").sentence == sentence


def test_of_a_large_earlier_span_a_uniform_sample_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, first = make_workspace(tmp_path, rows=3 * ROWS)
    late = change_rows(store, first, "2026-02", _late_prices, tmp_path)
    monkeypatch.setattr(window, "HISTORY_ROWS", ROWS)
    monkeypatch.setattr(window, "_JUDGED_ROWS", 90)
    found = read_earlier(store, [first, late], CONFIG)
    assert found.rows == len(found.items) == ROWS
    assert (found.series["price"] == -1.0).sum() == pytest.approx(ROWS // 2, rel=0.2), "not the first or last rows"
    monkeypatch.setattr(window, "HISTORY_ROWS", 3 * ROWS)
    assert read_earlier(store, [first, late], CONFIG).rows == 3 * ROWS


def _late_prices(rows: pa.Table) -> pa.Table:
    prices = [-1.0] * (rows.num_rows // 2) + [1.0] * (rows.num_rows - rows.num_rows // 2)
    return rows.set_column(rows.column_names.index("price"), "price", pa.array(prices))

"""Which months the demo ingests, the first time and when it is repeated; `make demo` itself trains for minutes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from flows.demo import __main__ as demo
from infra.store.directory import DirectoryStore
from tasks.data.span_versions import list_spans

FIRST = dt.date(2026, 7, 1)
MONTHS = ["2026-07", "2026-08", "2026-09", "2026-10"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "ROWS_PER_SPAN", 20)
    return DirectoryStore(tmp_path / "workspace" / "demo")


def versions(store: DirectoryStore) -> list[tuple[str, int]]:
    return [(span.name, span.version) for span in list_spans(store)]


@pytest.mark.parametrize(
    ("today", "first"), [("2026-11-22", "2026-07-01"), ("2026-05-01", "2026-01-01"), ("2027-01-31", "2026-09-01")]
)
def test_the_last_month_is_the_one_before_todays(today: str, first: str) -> None:
    now = dt.datetime.fromisoformat(today).replace(tzinfo=dt.UTC)
    assert demo.last_months(now) == dt.date.fromisoformat(first)


def test_the_broken_export_comes_first_and_its_correction_is_a_second_version(store: DirectoryStore) -> None:
    assert demo._ingest(store, FIRST) == MONTHS
    assert versions(store) == [("2026-07", 1), ("2026-08", 1), ("2026-09", 1)]
    assert demo._ingest(store, FIRST) == MONTHS
    demo._ingest_file(store, demo.CORRECTED)
    corrected = [("2026-07", 1), ("2026-08", 1), ("2026-09", 2), ("2026-10", 1)]
    assert versions(store) == corrected
    assert demo._ingest(store, dt.date(2027, 3, 1)) == MONTHS  # repeated in a later month
    demo._ingest_file(store, demo.CORRECTED)
    assert versions(store) == corrected

"""Spans with few rows; `ingest` of the tests gives each 40."""

import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import ConfigError
from tasks.planning.next_run import missed, plan_run
from tasks.runs.plan import NothingToDo
from tests.support.fakes.fake_runner import commit_files, ingest, small_config
from tests.support.workspace.states import rejected, released

MERGE = "validate.small_spans=merge"


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def few(store: DirectoryStore, *names: str, rows: int = 5) -> None:
    for name in names:
        commit_files(store, f"spans/{name}/v1", {"part-0.parquet": name}, "span", rows=rows)


def window(store: DirectoryStore, *overrides: str, span: str | None = None) -> list[str]:
    return [ref.name for ref in plan_run(store, small_config(*overrides), span).window]


def test_a_small_span_is_trained_together_with_the_next(store):
    ingest(store, "2026-06")
    released(store, plan_run(store, small_config(MERGE)))
    few(store, "2026-07")
    with pytest.raises(NothingToDo, match=r"validate.min_rows 32, so"):
        plan_run(store, small_config(MERGE))
    few(store, "2026-08", rows=30)
    ingest(store, "2026-09")
    assert window(store, MERGE) == window(store, MERGE, span="2026-08") == ["2026-07", "2026-08"]
    with pytest.raises(NothingToDo, match=r"together .*--span 2026-08"):
        plan_run(store, small_config(MERGE), "2026-07")
    with pytest.raises(ConfigError, match=r"2026-09 .*2026-07, 2026-08"):
        plan_run(store, small_config(MERGE), "2026-09")
    assert window(store) == ["2026-07"]  # without merge its run stops, and says what to do


def test_a_small_span_that_waits_is_not_missed(store):
    ingest(store, "2026-06")
    released(store, plan_run(store, small_config()))
    few(store, "2026-07", "2026-08", rows=20)
    few(store, "2026-09")
    assert missed(store, small_config(MERGE), "2026-09") == ["2026-08"]
    assert missed(store, small_config(), "2026-09") == ["2026-07", "2026-08", "2026-09"]
    released(store, plan_run(store, small_config(MERGE)))
    with pytest.raises(NothingToDo, match="2026-09 has fewer"):
        plan_run(store, small_config(MERGE), "2026-09")


def test_after_a_rejection_a_small_span_joins_with_the_next_all_the_same(store):
    ingest(store, "2026-06", "2026-07")
    released(store, plan_run(store, small_config(MERGE)))
    rejected(store, plan_run(store, small_config(MERGE)))
    few(store, "2026-08")
    ingest(store, "2026-09")
    assert window(store, MERGE) == ["2026-07", "2026-08", "2026-09"]


def test_a_lineage_begins_with_enough_rows(store):
    few(store, "2026-06", "2026-07", rows=15)
    assert window(store) == ["2026-06", "2026-07"]  # too few; its run stops and says so
    with pytest.raises(NothingToDo, match="2026-06, 2026-07 have"):
        plan_run(store, small_config(MERGE))
    few(store, "2026-08")
    ingest(store, "2026-09")
    assert window(store) == ["2026-06", "2026-07", "2026-08"]
    assert window(store, span="2026-06") == ["2026-06"]


def test_spans_whose_rows_were_never_counted_are_taken_as_they_are(store):
    commit_files(store, "spans/2026-06/v1", {"part-0.parquet": ""}, "span")
    few(store, "2026-07")
    assert window(store) == ["2026-06"]

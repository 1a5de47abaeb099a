"""The history of a workspace, which the pages and the metrics show."""

import datetime as dt
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import ConfigError, StoreError
from tasks.monitoring import history
from tasks.monitoring.history import read_history
from tasks.runs.run import read_run
from tasks.runs.snapshot import Snapshot
from tests.support.workspace.past import write_run


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_runs_are_in_the_order_of_their_start(store: DirectoryStore) -> None:
    keys = [write_run(store, number) for number in (2, 0, 1)]
    found = read_history(Snapshot(store))
    assert [run.run_key for run in found.runs] == [keys[1], keys[2], keys[0]]
    assert found.last is not None
    assert found.last.span == "2026-W03"


def test_the_history_reads_only_the_results_it_needs(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(store, 0)
    read: list[str] = []
    real = store.read
    monkeypatch.setattr(store, "read", lambda key: read.append(key) or real(key))
    read_history(Snapshot(store))
    assert {Stage(key.split("/")[2]) for key in read if key.endswith("result.json")} == {
        Stage.warmup,
        Stage.train,
        Stage.infer,
    }


def test_the_sides_of_a_comparison_are_not_runs(store: DirectoryStore) -> None:
    key = write_run(store, 0)
    store.delete(f"runs/{key}/plan.json")
    assert read_history(Snapshot(store)).runs == ()
    with pytest.raises(ConfigError, match=f"holds no run {key}"):
        read_run(Snapshot(store), key)


def test_a_workspace_that_cannot_be_read_is_an_error(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(key: str) -> list[str]:
        raise StoreError("the bucket is gone")

    monkeypatch.setattr(store, "list", gone)
    with pytest.raises(StoreError, match="the bucket is gone"):
        read_history(Snapshot(store))


def test_the_age_counts_from_the_end_of_the_data(store: DirectoryStore) -> None:
    write_run(store, 0)
    at = dt.datetime(2026, 1, 6, tzinfo=dt.UTC)  # the week ended as Monday, the 5th, began
    assert history.age_seconds(read_history(Snapshot(store)).current, at) == 24 * 3600
    assert history.age_seconds(None, at) is None

"""The history of a workspace, which the pages and the metrics show."""

import datetime as dt
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.runs import RunState
from tasks.contracts.stages import Stage
from tasks.foundation.errors import ConfigError, FailureClass, StoreError
from tasks.monitoring import history
from tasks.monitoring.history import read_history, read_run
from tasks.monitoring.reader import Reader
from tests.support.workspace.past import End, write_run


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


@pytest.mark.parametrize(
    ("end", "failure", "state", "succeeded"),
    [
        ("Released", None, RunState.RELEASED, True),
        ("Rejected", None, RunState.REJECTED, True),
        ("Failed", FailureClass.DATA, RunState.FAILED, False),
        ("Cancelled", FailureClass.CANCELLED, RunState.CANCELLED, None),
        ("Running", None, RunState.RUNNING, None),
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_runs_end_is_read_with_and_without_its_invocations(
    store: DirectoryStore,
    end: End,
    failure: FailureClass | None,
    state: RunState,
    succeeded: bool | None,
    recorded: bool,
) -> None:
    write_run(store, 0)
    key = write_run(store, 1, end, failure)
    if not recorded:
        store.delete(f"runs/{key}/invocations")
    run, problems = read_run(store, key)
    assert (run.state, run.failure, run.succeeded, problems) == (state, failure, succeeded, ())
    assert (run.ended_at is None) is (end == "Running")
    assert run.message.startswith("validate: 31.2 % of the rows") is (failure is FailureClass.DATA)


def test_runs_are_in_the_order_of_their_start(store: DirectoryStore) -> None:
    keys = [write_run(store, number) for number in (2, 0, 1)]
    found = read_history(Reader(store))
    assert [run.run_key for run in found.runs] == [keys[1], keys[2], keys[0]]
    assert found.last is not None
    assert found.last.span == "2026-W03"


def test_the_history_reads_only_the_results_it_needs(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(store, 0)
    read: list[str] = []
    real = store.read
    monkeypatch.setattr(store, "read", lambda key: read.append(key) or real(key))
    found = read_history(Reader(store))
    assert set(found.runs[0].results) == {Stage.warmup, Stage.train, Stage.infer}
    assert not any(key.endswith("/validate/result.json") for key in read)
    assert not any(key.endswith("/health/result.json") for key in read)


def test_the_sides_of_a_comparison_are_not_runs(store: DirectoryStore) -> None:
    key = write_run(store, 0)
    store.delete(f"runs/{key}/plan.json")
    assert read_history(Reader(store)).runs == ()
    with pytest.raises(ConfigError, match=f"holds no run {key}"):
        read_run(store, key)


def test_a_result_deleted_during_reading_is_left_out(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    key = write_run(store, 0)
    real = store.read

    def read(name: str) -> bytes:
        if name.endswith("train/result.json"):
            raise FileNotFoundError(name)
        return real(name)

    monkeypatch.setattr(store, "read", read)
    run, problems = read_run(store, key)
    assert (Stage.train in run.results, problems) == (False, ())


def test_a_workspace_that_cannot_be_read_is_an_error(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(key: str) -> list[str]:
        raise StoreError("the bucket is gone")

    monkeypatch.setattr(store, "list", gone)
    with pytest.raises(StoreError, match="the bucket is gone"):
        read_history(Reader(store))


def test_the_age_counts_from_the_end_of_the_data(store: DirectoryStore) -> None:
    write_run(store, 0)
    at = dt.datetime(2026, 1, 6, tzinfo=dt.UTC)  # the week ended as Monday, the 5th, began
    assert history.age_seconds(read_history(Reader(store)).current, at) == 24 * 3600
    assert history.age_seconds(None, at) is None

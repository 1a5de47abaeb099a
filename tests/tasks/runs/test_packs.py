"""Packs of the records of runs that are over."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store.base import Conflict, Store
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tasks.contracts.runs import RunPlan, RunState
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import PACKED_RUNS
from tasks.foundation.errors import FailureClass
from tasks.monitoring.history import line_of, read_history
from tasks.runs import invocations, releases
from tasks.runs.plan import read_plan
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot, pack_runs
from tests.support.cloud.s3 import S3Server
from tests.support.workspace.past import write_past, write_run


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def invoked_again(store: DirectoryStore, run_key: str) -> RunPlan:
    plan = read_plan(store, run_key)
    one = invocations.begin(store, plan)
    invocations.end(store, one, RunState.FAILED, FailureClass.HOST, "lost")
    return plan


def as_read(store: Store) -> tuple[object, ...]:
    """All that the records of the runs say, and the rest of the history."""
    history = read_history(Snapshot(store))
    return tuple(map(facts, history.runs)), history._replace(runs=())


def facts(run: Run) -> tuple[object, ...]:
    return line_of(run), run.plan, run.invocations, run.attempts, run.judgement, run.outcome(Stage.train)


def test_no_record_of_a_packed_run_is_asked_for(s3: S3Server) -> None:
    store = open_store(s3.new_workspace())
    write_past(store, 6, {2: ("Rejected", None), 3: ("Failed", FailureClass.DATA)})
    before, current = as_read(store), releases.current(store)
    assert pack_runs(store) == 6
    assert current is not None
    s3.forget()
    assert as_read(store) == before
    asked = [one for one in s3.requests if "list-type" not in one]
    of_runs = [one.partition("/runs/")[2] for one in asked if "/runs/" in one and "/packs/" not in one]
    assert of_runs == [f"{current.run_key}/plan.json"], "for what the catalogue holds"
    assert len(s3.requests) < 40, "whatever the number of runs"


@pytest.mark.parametrize("end", ["Released", "Failed"])
def test_a_run_that_was_taken_up_again_is_read_from_its_records(store: DirectoryStore, end) -> None:
    failure = FailureClass.CODE if end == "Failed" else None
    keys = [write_run(store, 0), write_run(store, 1, end, failure)]
    assert (pack_runs(store), pack_runs(store)) == (2, 0)
    invoked_again(store, keys[1])
    run = read_history(Snapshot(store)).runs[1]
    assert [one.number for one in run.invocations] == [1, 2]
    assert pack_runs(store) == 1
    assert facts(read_history(Snapshot(store)).runs[1]) == facts(run)


def test_a_run_that_goes_on_is_not_packed(store: DirectoryStore) -> None:
    write_run(store, 0)
    write_run(store, 1, "Running")
    assert pack_runs(store) == 1


def test_a_lost_and_a_damaged_pack_hide_nothing_and_are_made_again(store: DirectoryStore) -> None:
    write_past(store, 10)
    before = as_read(store)
    assert pack_runs(store) == 10
    lost, damaged, *_ = store.list(PACKED_RUNS.within())
    store.delete(lost)
    store.write(damaged, b'{"version": 1, "runs": {"a"')
    assert as_read(store) == before
    assert pack_runs(store) > 4
    assert pack_runs(store) == 0
    assert as_read(store) == before


def test_of_two_that_pack_at_once_one_leaves_its_runs_for_later(store: DirectoryStore, monkeypatch) -> None:
    write_run(store, 0)

    def taken(*_: object, **__: object) -> None:
        raise Conflict("another process was faster")

    with monkeypatch.context() as patched:
        patched.setattr(store, "swap", taken)
        pack_runs(store)
    assert store.list(PACKED_RUNS.within()) == []
    assert pack_runs(store) == 1

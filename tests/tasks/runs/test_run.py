"""A run as its records tell it: also one that failed, was killed or is held."""

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.runs import Hold, RunState
from tasks.contracts.stages import Stage
from tasks.foundation.errors import FailureClass, StoreError
from tasks.runs import branches
from tasks.runs.releases import CURRENT, Pointer
from tasks.runs.run import Run, read_run
from tasks.runs.snapshot import Snapshot
from tests.support.workspace.invocations import write_invocation
from tests.support.workspace.past import End, settings, write_run

HOLD = Hold(by="ada on laptop", at="2026-03-01T00:00:00+00:00", reason="a bad week")


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
        ("Running", None, RunState.LOST, False),
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
    run = read_run(Snapshot(store), key)
    assert (run.state, run.failure, run.succeeded, run.snapshot.problems) == (state, failure, succeeded, [])
    assert (run.ended_at is None) is (end == "Running")
    assert run.message.startswith("validate: 31.2 % of the rows") is (failure is FailureClass.DATA)


def test_a_run_without_an_end_runs_while_a_process_holds_its_lineage_or_the_one_of_its_branch(
    store: DirectoryStore,
) -> None:
    key = write_run(store, 0, "Running")
    with store.lock("lineages/main.run"):
        assert read_run(Snapshot(store), key).state is RunState.RUNNING
    branches.begin(store, "main-next", "main", None)
    branched = write_run(store, 1, "Running", config=settings("lineage=main-next"))
    with store.lock("lineages/main.run"):
        run = read_run(Snapshot(store), branched)
        assert (run.state, run.succeeded, run.lost_invocations) == (RunState.RUNNING, None, ())
    assert read_run(Snapshot(store), branched).state is RunState.LOST


def test_an_invocation_without_an_end_is_lost_once_another_follows(store: DirectoryStore) -> None:
    """The watch ends its flow run, although the run itself was released by the next one."""
    key = write_run(store, 0)
    run = read_run(Snapshot(store), key)
    assert run.plan is not None
    write_invocation(store, run.plan, number=2, state="Released", ended_at="2026-11-13T09:00:00+00:00")
    store.write(f"runs/{key}/invocations/1.json", run.invocations[0].model_copy(
        update={"state": RunState.RUNNING, "ended_at": None}).to_json())  # fmt: skip
    with store.lock("lineages/main.run"):
        again = read_run(Snapshot(store), key)
        assert again.state is RunState.RELEASED
        assert [one.number for one in again.lost_invocations] == [1]


def test_a_run_whose_release_waits_is_held(store: DirectoryStore) -> None:
    keys = [write_run(store, number) for number in range(2)]
    store.write(CURRENT, Pointer(release=1, undecided=(2,), hold=HOLD).to_json())
    held = Run(Snapshot(store), keys[1])
    assert (held.state, held.reached, held.succeeded) == (RunState.HELD, RunState.HELD, True)
    assert Run(Snapshot(store), keys[0]).state is RunState.RELEASED


def test_a_run_reads_only_what_it_is_asked_for(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    key, read = write_run(store, 0), list[str]()
    real = store.read
    monkeypatch.setattr(store, "read", lambda name: read.append(name) or real(name))
    run = Run(Snapshot(store), key)
    assert run.stage(Stage.train).done
    assert read == []
    assert [each.stage for each in run.stage(Stage.train).attempts] == [Stage.train]
    assert run.stage(Stage.train).attempts is run.stage(Stage.train).attempts
    assert read == [f"runs/{key}/train/attempt-1/ledger.json"]


def test_the_attempts_since_a_moment_are_those_that_started_later(store: DirectoryStore) -> None:
    run = Run(Snapshot(store), write_run(store, 0))
    assert run.since(run.began_at) == run.attempts
    assert run.since(run.attempts[2].started_at) == run.attempts[2:]


def test_a_result_deleted_during_reading_is_left_out(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    key = write_run(store, 0)
    real = store.read

    def read(name: str) -> bytes:
        if name.endswith("train/result.json"):
            raise FileNotFoundError(name)
        return real(name)

    monkeypatch.setattr(store, "read", read)
    run = read_run(Snapshot(store), key)
    assert (Stage.train in run.results, run.snapshot.problems) == (False, [])


def test_a_record_that_cannot_be_read_is_named_or_an_error(store: DirectoryStore) -> None:
    key = write_run(store, 0)
    store.write(f"runs/{key}/train/attempt-1/ledger.json", b"{}")
    run = Run(Snapshot(store), key)
    assert Stage.train not in [each.stage for each in run.attempts]
    assert [problem.split(" is not")[0] for problem in run.snapshot.problems] == [
        f"{store.uri}/runs/{key}/train/attempt-1/ledger.json"
    ]
    with pytest.raises(StoreError, match=r"attempt-1/ledger\.json"):
        _ = Run(Snapshot(store, strict=True), key).attempts

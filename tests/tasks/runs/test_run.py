"""A run as its records tell it: also one that failed, was killed or is held."""

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.runs import Hold, RunState
from tasks.contracts.stages import Stage
from tasks.foundation.errors import FailureClass, HostError, StoreError
from tasks.planning.next_run import plan_run
from tasks.runs import branches, invocations
from tasks.runs.releases import CURRENT, Pointer
from tasks.runs.run import Run, read_run
from tasks.runs.snapshot import Snapshot
from tests.support.fakes.fake_runner import PHASES, small_config
from tests.support.fakes.stages import carry_out
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
    with pytest.raises(StoreError, match=r"attempt-1/ledger\.json is not readable.*move it away"):
        _ = Run(Snapshot(store, strict=True), key).attempts


WALL = PHASES.booting + PHASES.compiling + PHASES.restoring + PHASES.productive


def test_the_report_of_a_released_run_has_its_results(store, runner):
    carry_out(plan_run(store, small_config()))
    plan = plan_run(store, small_config())
    runner.fail(Stage.infer, HostError("gone"))
    with pytest.raises(HostError):
        carry_out(plan)
    run = carry_out(plan)
    found = Run(Snapshot(store), plan.run_key)
    assert run.released is not None
    assert (found.state, found.span, found.release) == ("Released", "2021-Q2", run.released)
    assert found.metrics == {"recall@10": 0.5, "mrr@10": 0.3}
    assert found.vectors == 30
    assert found.judgement is not None
    assert found.judgement.verdicts == run.judged.verdicts
    assert found.judgement.all_verdicts[-1].metric == "recall@10 of the items that both hold"
    assert found.wall_seconds == pytest.approx(8 * WALL)


def test_a_rejected_run_says_why(store, runner):
    carry_out(plan_run(store, small_config()))
    runner.metrics = {"recall@10": 0.2, "mrr@10": 0.39}
    plan = plan_run(store, small_config())
    carry_out(plan)
    found = Run(Snapshot(store), plan.run_key)
    assert (found.state, found.release, found.vectors) == ("Rejected", None, None)
    assert found.message.startswith(
        "recall@10 0.2000 is 0.2000 below the champion's 0.4000; allowed is a drop of 0.0050."
    )


def test_the_stages_that_were_done_before_an_invocation_are_cached(store, runner):
    plan = plan_run(store, small_config())
    runner.fail(Stage.evaluate, HostError("gone"))
    with pytest.raises(HostError):
        carry_out(plan)
    invocations.begin(store, plan)
    carry_out(plan)
    assert Run(Snapshot(store), plan.run_key).cached == (Stage.validate, Stage.health, Stage.warmup, Stage.train)

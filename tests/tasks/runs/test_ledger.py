import datetime as dt
import time

import pytest

from configs.schema.operations import LOCAL_WORKER
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import BatchAttempt, JobSpec
from tasks.contracts.outcomes import HealthOutcome, KeptWork, Phases, StageResult, WorkerFailure
from tasks.contracts.stages import Stage
from tasks.foundation.clock import now
from tasks.foundation.errors import DataError, FailureClass, HostError, StoreError
from tasks.runs import ledger
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run, StageRun
from tasks.runs.snapshot import Snapshot
from tasks.runs.sums import sums_of
from tests.support.workspace.specs import spec_of


def job(attempt: int = 1, workers: int = 1, run_key: str = "aaaa", price: float | None = None) -> JobSpec:
    settings = ("compute=local", f"cost.dollars_per_worker_hour={price or 'null'}")
    spec = spec_of(Stage.health, workers, *settings, attempt=attempt)
    return spec.model_copy(update={"run_key": run_key})


def write_result(store: DirectoryStore, spec: JobSpec, phases: Phases) -> None:
    outcome = HealthOutcome(
        device="fake",
        matmul_gflops=(1.0,),
        slowest_to_median=1.0,
        free_memory_gib=(1.0,),
        free_disk_gib=1.0,
        collectives={},
        checks=(),
    )
    result = StageResult(run_key=spec.run_key, attempt=spec.attempt, config_sha256="", phases=phases, outcome=outcome)
    store.write(f"{spec.stage_prefix}/result.json", result.to_json())


def write_failure(store: DirectoryStore, spec: JobSpec, rank: int, at: float, phases: Phases) -> None:
    failure = WorkerFailure(rank=rank, at=at, failure="HOST", message="", traceback="", phases=phases)
    store.write(f"{spec.attempt_prefix}/error-rank{rank}.json", failure.to_json())


def only(store: DirectoryStore) -> LedgerRecord:
    (record,) = ledger.records(store)
    return record


def health(store: DirectoryStore) -> StageRun:
    return Run(Snapshot(store, strict=True), "aaaa").stage(Stage.health)


def close_abandoned(store: DirectoryStore) -> list[LedgerRecord]:
    return [
        ledger.OpenAttempt(store, each).close_abandoned() for each in health(store).attempts if each.ended_at is None
    ]


def keep(store: DirectoryStore, spec: JobSpec, phases: Phases) -> None:
    store.write(f"{spec.attempt_prefix}/kept.json", KeptWork(phases=phases).to_json())


def test_a_done_attempt_has_the_workers_phases_and_the_rest_is_booting(store):
    spec = job(workers=2, price=3.0)
    attempt = ledger.OpenAttempt.begin(store, spec)
    write_result(store, spec, Phases(booting=2.0, compiling=1.0, restoring=0.5, productive=26.0))
    attempt.end(wall_seconds=30.0)
    done = only(store)
    assert done.seconds == Phases(booting=2.5, compiling=1.0, restoring=0.5, productive=26.0)
    assert done.failure is None
    assert done.ended_at is not None
    assert (done.instance, done.machines, done.billable_seconds) == (LOCAL_WORKER, 2, 60.0)
    assert done.cost == pytest.approx(30 / 3600 * 6)


def test_phases_that_are_longer_than_the_wall_time_stay(store):
    spec = job()
    attempt = ledger.OpenAttempt.begin(store, spec)
    write_result(store, spec, Phases(booting=2.0, productive=9.0))
    assert attempt.end(wall_seconds=10.0).seconds == Phases(booting=2.0, productive=9.0)


def test_the_productive_time_of_a_failed_attempt_is_lost(store):
    spec = job(workers=2)
    attempt = ledger.OpenAttempt.begin(store, spec)
    write_failure(store, spec, rank=0, at=101.0, phases=Phases(booting=1.0, productive=9.0))
    write_failure(store, spec, rank=1, at=100.0, phases=Phases(booting=2.0, restoring=1.0, productive=7.0))
    attempt.end(wall_seconds=11.0, error=HostError("gone"))
    failed = only(store)
    assert failed.seconds == Phases(booting=3.0, restoring=1.0, lost=7.0)
    assert (failed.failure, failed.message) == (FailureClass.HOST, "gone")


def test_the_work_of_a_failed_attempt_up_to_its_last_checkpoint_is_not_lost(store):
    spec = job(workers=2)
    attempt = ledger.OpenAttempt.begin(store, spec)
    keep(store, spec, Phases(booting=1.0, restoring=1.0, productive=6.0))
    write_failure(store, spec, rank=0, at=101.0, phases=Phases(booting=1.0, restoring=1.0, productive=9.0))
    attempt.end(wall_seconds=11.0, error=HostError("gone"))
    assert only(store).seconds == Phases(booting=1.0, restoring=1.0, productive=6.0, lost=3.0)


def test_a_killed_attempt_has_lost_what_came_after_its_last_checkpoint(store):
    spec = job()
    attempt = ledger.OpenAttempt.begin(store, spec)
    keep(store, spec, Phases(booting=1.0, restoring=1.0, productive=6.0))
    ended = attempt.end(12.0, HostError("killed"))
    assert ended.seconds == Phases(booting=1.0, restoring=1.0, productive=6.0, lost=4.0)


def test_all_time_of_an_attempt_without_worker_records_is_lost(store):
    attempt = ledger.OpenAttempt.begin(store, job())
    assert attempt.end(5.0, HostError("killed")).seconds == Phases(lost=5.0)


@pytest.mark.parametrize(
    ("error", "failure", "message"),
    [
        (DataError("row 3"), FailureClass.DATA, "row 3"),
        (KeyboardInterrupt(), FailureClass.CANCELLED, "KeyboardInterrupt"),
        (RuntimeError("odd"), FailureClass.CODE, "odd"),
    ],
)
def test_each_error_is_recorded_with_its_class(store, error, failure, message):
    ledger.OpenAttempt.begin(store, job()).end(1.0, error)
    assert (only(store).failure, only(store).message) == (failure, message)


def test_a_running_attempt_has_an_open_record(store):
    ledger.OpenAttempt.begin(store, job())
    assert only(store).ended_at is None
    assert sums_of(ledger.records(store)).running == 1


def test_an_abandoned_attempt_is_closed_as_host_with_its_workers_times(store):
    ledger.OpenAttempt.begin(store, job())
    ledger.OpenAttempt.begin(store, job(attempt=2))
    write_failure(store, job(attempt=2), rank=0, at=time.time(), phases=Phases(booting=1.0, productive=4.0))
    closed = close_abandoned(store)
    assert [record.failure for record in closed] == [FailureClass.HOST] * 2
    assert [record.seconds for record in closed] == [Phases(), Phases(booting=1.0, lost=4.0)]
    assert ledger.records(store) == closed
    assert close_abandoned(store) == []


def test_an_orchestrator_that_stood_still_does_not_change_the_record_that_its_successor_closed(store):
    attempt = ledger.OpenAttempt.begin(store, job())
    (closed,) = close_abandoned(store)
    assert attempt.end(4000.0) == closed
    assert only(store) == closed


def test_an_abandoned_attempt_ended_with_its_last_sign_of_life(store):
    attempt = ledger.OpenAttempt.begin(store, job(price=36.0))
    keep(store, job(), Phases(booting=2.0, productive=40.0))
    attempt.see(30.0)
    attempt.see(60.0)
    seen = now()
    (closed,) = close_abandoned(store)
    assert closed.seconds == Phases(booting=2.0, productive=40.0, lost=18.0)
    assert closed.cost == pytest.approx(0.6)
    assert closed.ended_at is not None
    assert closed.ended_at < seen


def test_an_abandoned_attempt_with_a_result_is_closed_as_done(store):
    ledger.OpenAttempt.begin(store, job())
    write_result(store, job(), Phases(productive=4.0))
    (closed,) = close_abandoned(store)
    assert closed.failure is None
    assert closed.seconds.productive == 4.0


def test_the_last_attempt_is_found_by_its_files(store):
    assert health(store).last_number == 0
    for attempt in (1, 2, 10):
        store.write(f"{job(attempt=attempt).attempt_prefix}/spec.json", b"{}")
    assert health(store).last_number == 10


def test_records_are_in_the_order_of_their_start(store):
    first = ledger.OpenAttempt.begin(store, job(run_key="ffff")).record
    second = ledger.OpenAttempt.begin(store, job(run_key="0000")).record
    assert ledger.records(store) == [first, second]
    assert ledger.records(store, "0000") == [second]


def test_a_damaged_record_is_named(store):
    ledger.OpenAttempt.begin(store, job())
    store.write("runs/aaaa/health/attempt-1/ledger.json", b"{")
    with pytest.raises(StoreError, match=r"attempt-1/ledger\.json"):
        ledger.records(store)


def a_try(attempt: int, failure: FailureClass | None = None, running: float = 20.0) -> BatchAttempt:
    return BatchAttempt(
        attempt=attempt,
        failure=failure,
        message="the host went away" if failure else "",
        queued=100.0,
        booting=30.0,
        running=running,
        machines=1,
        billable_seconds=30.0 + running,
        job="1234",
        hosts=("i-1",),
    )


def test_each_try_of_a_rented_machine_is_a_separate_attempt(store):
    spec = job(attempt=2, workers=2, price=36.0)
    attempt = ledger.OpenAttempt.begin(store, spec)
    third = spec.model_copy(update={"attempt": 3})
    write_result(store, third, Phases(booting=2.0, restoring=3.0, productive=10.0))
    attempt.end_tries([a_try(2, FailureClass.HOST), a_try(3)], spec.config.cost)
    lost, done = sorted(ledger.records(store), key=lambda record: record.attempt)
    assert (lost.attempt, lost.failure, lost.message) == (2, FailureClass.HOST, "the host went away")
    assert lost.seconds == Phases(queued=100.0, booting=30.0, lost=20.0)
    assert (done.attempt, done.failure, done.job, done.hosts) == (3, None, "1234", ("i-1",))
    assert done.seconds == Phases(queued=100.0, booting=37.0, restoring=3.0, productive=10.0)
    assert done.wall_seconds == lost.wall_seconds == 150.0
    assert [lost.cost, done.cost] == [0.5, 0.5]
    assert health(store).last_number == 3
    assert sums_of([lost, done]).goodput == 0.1  # of 100 s on machines; nobody pays for the 200 s in the queue


def test_the_tries_of_a_job_follow_each_other_in_time(store):
    spec = job()
    tries = [
        a_try(1, FailureClass.HOST).model_copy(update={"stopped_at": 1000.0}),
        a_try(2).model_copy(update={"stopped_at": 1150.0}),
    ]
    ledger.OpenAttempt.begin(store, spec).end_tries(tries, spec.config.cost)
    first, second = sorted(ledger.records(store), key=lambda record: record.attempt)
    assert first.ended_at is not None
    assert second.ended_at is not None
    assert second.started_at == first.ended_at
    took = dt.datetime.fromisoformat(second.ended_at) - dt.datetime.fromisoformat(second.started_at)
    assert took.total_seconds() == second.wall_seconds == 150.0


def test_the_instance_that_batch_names_is_charged(store):
    spec = job()
    tries = [a_try(1, FailureClass.HOST), a_try(2).model_copy(update={"instance": "trn1.2xlarge"})]
    ledger.OpenAttempt.begin(store, spec).end_tries(tries, spec.config.cost)
    first, second = sorted(ledger.records(store), key=lambda record: record.attempt)
    assert (first.instance, first.instance_seen, first.cost) == (LOCAL_WORKER, False, None)
    assert (second.instance, second.instance_seen) == ("trn1.2xlarge", True)
    assert second.cost == pytest.approx(50 / 3600 * 1.34375)


def test_the_productive_time_of_a_lost_try_is_lost(store):
    spec = job()
    attempt = ledger.OpenAttempt.begin(store, spec)
    write_failure(store, spec, rank=0, at=5.0, phases=Phases(booting=1.0, compiling=4.0, productive=12.0))
    attempt.end_tries([a_try(1, FailureClass.HOST)], spec.config.cost)
    assert only(store).seconds == Phases(queued=100.0, booting=34.0, compiling=4.0, lost=12.0)


def test_the_last_submitted_spec_is_found_and_not_its_retries_copies(store):
    first = job(attempt=1)
    assert health(store).last_spec() is None
    for spec in (first, job(attempt=2), job(attempt=2).model_copy(update={"attempt": 3})):
        store.write(f"{spec.attempt_prefix}/spec.json", spec.to_json())
    assert health(store).last_spec() == job(attempt=2)
    store.write("runs/aaaa/health/attempt-4/spec.json", b"{")
    assert health(store).last_spec() is None

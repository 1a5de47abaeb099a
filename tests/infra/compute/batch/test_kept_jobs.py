"""Jobs that do several stages of a run, by the real launchers on the emulator of AWS Batch."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.compute.batch import kept_jobs, reap, watch
from infra.compute.batch.claim import read_claim
from infra.compute.batch.runner import BatchRunner
from infra.handover import Next, attempts_of_job, decide, find_finished, find_next, key_of, let_go
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec
from tasks.contracts.stages import Stage
from tasks.foundation.errors import CancelledError, DataError, FailureClass, HostError
from tests.support.cloud.batch import BatchServer
from tests.support.cloud.kept import scripted_environment, workers_do
from tests.support.cloud.waiters import Dying, Waiting, run, state_of
from tests.support.fakes.stand_ins import Heard
from tests.support.workspace.specs import written_spec

STAGES = (Stage.health, Stage.warmup, Stage.train)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchServer]:
    server = BatchServer(scripted_environment(tmp_path_factory.mktemp("site")), grace_seconds=5.0)
    server.register_all()
    yield server
    server.stop()


@pytest.fixture
def batch(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> BatchServer:
    server.forget()
    server.forgive()
    for service in ("BATCH", "CLOUDWATCH_LOGS"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", server.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(watch, "_SHORTEST", 0.05)
    monkeypatch.setattr("infra.compute.batch.job.VISIBILITY_SECONDS", 0.3)
    return server


def spec_of(store: DirectoryStore, stage: Stage, *settings: str, workers: int = 1, attempt: int = 1) -> JobSpec:
    kept = ("batch.keep_seconds=20", f"train.workers={workers}", *settings)
    return written_spec(store, stage, workers, *kept, attempt=attempt)


def done(store: DirectoryStore, stage: Stage, *settings: str, **more: int) -> tuple[JobSpec, Heard]:
    spec = spec_of(store, stage, *settings, **more)
    return spec, run(store, spec)


def jobs(batch: BatchServer) -> list[tuple[str, str]]:
    """The stage that each job was submitted for, and its status."""
    return [(job["tags"]["millrace-stage"], job["status"]) for job in batch.jobs()]


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def over(batch: BatchServer) -> None:
    until(lambda: all(status in ("SUCCEEDED", "FAILED") for _, status in jobs(batch)))


@pytest.mark.parametrize("workers", [1, 2])
def test_one_job_does_the_stages_of_a_run(batch, store, workers) -> None:
    workers_do(store, "time.sleep(0.3)")
    seconds, last = 0.0, "runs/f00d/train/attempt-1"
    for stage in STAGES:
        spec, heard = done(store, stage, workers=workers)
        said = [line for line in heard.lines if line.endswith(("begins", "ends"))]
        nodes = [""] if workers == 1 else ["[node 0] ", "[node 1] "]
        assert sorted(said) == sorted(f"{node}{stage} 1 {what}" for node in nodes for what in ("begins", "ends"))
        assert not any("@stage" in line for line in heard.lines)
        (only,) = heard.tries
        assert (only.attempt, only.failure, len(only.hosts)) == (1, None, workers)
        assert state_of(store, spec) == "over"
        assert only.queued < 0.1 or stage is Stage.health
        seconds += only.billable_seconds
    (job,) = batch.jobs()
    finished = find_finished(store, last)
    assert finished is not None
    assert len(batch.calls("SubmitJob")) == 1
    # Each second of the machines is in one record, up to the end of the last stage.
    begun = min(life.started for life in batch.lives())
    assert seconds == pytest.approx(workers * (finished.at - begun), abs=0.3 * workers)
    assert job["status"] == "RUNNING"
    assert attempts_of_job(store, "runs/f00d/health/attempt-1") == [f"runs/f00d/{stage}/attempt-1" for stage in STAGES]


def test_without_a_time_to_wait_each_stage_has_a_job(batch, store) -> None:
    workers_do(store, "")
    for stage in STAGES[:2]:
        done(store, stage, "batch.keep_seconds=0")
    assert jobs(batch) == [("health", "SUCCEEDED"), ("warmup", "SUCCEEDED")]
    assert [job["jobDefinition"].rpartition("/")[2] for job in batch.jobs()] == [
        "millrace-health:1",
        "millrace-warmup:1",
    ]
    assert not any("finished" in key or "next" in key for key in store.list("runs"))


def test_a_job_that_is_given_nothing_ends_by_itself_and_the_next_stage_has_its_own(batch, store) -> None:
    workers_do(store, "")
    spec, _ = done(store, Stage.health, "batch.keep_seconds=1")
    over(batch)
    assert find_next(store, spec.job_prefix) == Next(spec=None)
    done(store, Stage.warmup)
    assert jobs(batch) == [("health", "SUCCEEDED"), ("warmup", "RUNNING")]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_host_lost_after_the_hand_over_repeats_that_stage_alone(batch, store, workers) -> None:
    workers_do(store, 'stage == "warmup" and number == 1 and time.sleep(60)')
    done(store, Stage.health, workers=workers)
    batch.kill_host_when_log("*", "warmup 1 begins", index=0)
    _, heard = done(store, Stage.warmup, workers=workers)
    lost, well = heard.tries
    assert (lost.attempt, lost.failure, well.attempt, well.failure) == (1, FailureClass.HOST, 2, None)
    assert set(lost.hosts).isdisjoint(well.hosts) or workers == 2
    assert well.running < 10
    assert any(line.endswith("warmup 2 ends") for line in heard.lines)
    assert not any("health" in line for line in heard.lines if "begins" in line)
    done(store, Stage.train, workers=workers)
    assert jobs(batch) == [("health", "RUNNING")]
    assert len(batch.calls("SubmitJob")) == 1


def test_a_host_lost_while_the_job_waits_repeats_nothing(batch, store) -> None:
    """The second try finds the stage done and its wait over, and ends."""
    workers_do(store, "")
    spec, _ = done(store, Stage.health, "batch.keep_seconds=1")
    batch.kill_host("*")
    over(batch)
    assert jobs(batch) == [("health", "SUCCEEDED")]
    assert len(batch.lives()) == 2
    assert store.list(f"{spec.stage_prefix}/attempt-2") == []


def test_a_failure_after_the_hand_over_is_that_stages_and_its_retry_is_another_job(batch, store) -> None:
    workers_do(store, 'stage == "warmup" and number == 1 and fail("DATA", "row 7 has no label", 65)')
    done(store, Stage.health)
    with pytest.raises(DataError, match="row 7 has no label"):
        done(store, Stage.warmup)
    assert jobs(batch) == [("health", "FAILED")]
    _, heard = done(store, Stage.warmup, attempt=2)
    assert [one.attempt for one in heard.tries] == [2]
    assert jobs(batch) == [("health", "FAILED"), ("warmup", "RUNNING")]


def test_a_waiter_that_died_finds_the_job_that_does_its_stage(batch, store) -> None:
    workers_do(store, 'stage == "warmup" and wait_for("go")')
    done(store, Stage.health)
    spec = spec_of(store, Stage.warmup)
    with pytest.raises(HostError, match="gone"):
        run(store, spec, Dying(HostError("gone"), "warmup 1 begins"))
    assert BatchRunner(store, spec.config).found(spec)
    store.write("go", b"")
    heard = run(store, spec)
    assert [one.failure for one in heard.tries] == [None]
    assert "health 1 begins" not in heard.lines
    assert len(batch.calls("SubmitJob")) == 1


def test_two_waiters_of_a_stage_wait_for_the_same_job(batch, store) -> None:
    workers_do(store, 'stage == "warmup" and wait_for("go")')
    done(store, Stage.health)
    spec, others = spec_of(store, Stage.warmup), []

    def join() -> None:
        if not store.exists("go"):
            store.write("go", b"")
            others.append(run(store, spec))

    heard = run(store, spec, Waiting("warmup 1 begins", join))
    assert [[one.failure for one in each.tries] for each in (heard, *others)] == [[None], [None]]
    assert len(batch.calls("SubmitJob")) == 1


def test_a_waiter_that_died_in_the_hand_over_finds_the_job(batch, store) -> None:
    workers_do(store, "")
    done(store, Stage.health)
    spec, _ = done(store, Stage.warmup)
    claim = read_claim(store, spec.job_prefix)
    assert claim is not None
    unsure = claim.model_copy(update={"state": "claimed", "job_id": None})
    store.write(f"{spec.job_prefix}/job.json", unsure.to_json())
    assert BatchRunner(store, spec.config).found(spec)
    run(store, spec)
    assert len(batch.calls("SubmitJob")) == 1


def test_a_job_that_is_gone_before_it_takes_the_stage_is_replaced(batch, store, monkeypatch) -> None:
    workers_do(store, "")
    spec = spec_of(store, Stage.health)
    BatchRunner(store, spec.config).run(spec, Waiting(), 1)

    def lost(*given):
        batch.kill_host("*")
        over(batch)
        return decide(*given)

    monkeypatch.setattr(kept_jobs, "decide", lost)
    _, heard = done(store, Stage.warmup)
    assert [(one.attempt, one.failure) for one in heard.tries] == [(1, None)]
    assert jobs(batch) == [("health", "FAILED"), ("warmup", "RUNNING")]
    assert "ended before it took the stage" in "\n".join(heard.lines)


def test_a_job_that_does_not_take_the_stage_in_time_is_replaced(batch, store, monkeypatch) -> None:
    monkeypatch.setattr(watch, "TAKE_SECONDS", 0.5)
    workers_do(store, "")
    done(store, Stage.health)
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if str(store.root).encode() in command.read_bytes():
                os.kill(int(command.parent.name), signal.SIGSTOP)
    _, heard = done(store, Stage.warmup)
    assert [(one.attempt, one.failure) for one in heard.tries] == [(1, None)]
    assert jobs(batch) == [("health", "FAILED"), ("warmup", "RUNNING")]


def test_a_cancelled_stage_ends_the_job_that_was_handed_it(batch, store) -> None:
    workers_do(store, 'stage == "warmup" and time.sleep(60)')
    done(store, Stage.health)
    spec, waiter = spec_of(store, Stage.warmup), Dying(CancelledError("stop"), "warmup 1 begins")
    with pytest.raises(CancelledError, match="stop"):
        run(store, spec, waiter)
    assert jobs(batch) == [("health", "FAILED")]
    assert (state_of(store, spec), [one.failure for one in waiter.tries]) == ("over", [FailureClass.CANCELLED])


def test_a_stage_cancelled_before_its_hand_over_is_recorded_ends_the_job(batch, store, monkeypatch) -> None:
    """Else the job would do the stage to its end, beside the next attempt's."""
    workers_do(store, 'stage == "warmup" and time.sleep(60)')
    done(store, Stage.health)
    spec = spec_of(store, Stage.warmup)

    def cancelled(*given):
        raise CancelledError("stop")

    monkeypatch.setattr(BatchRunner, "_record_job", cancelled)
    with pytest.raises(CancelledError, match="stop"):
        run(store, spec)
    assert jobs(batch) == [("health", "FAILED")]
    assert state_of(store, spec) == "over"


def test_a_flow_run_cancelled_during_the_wait_ends_its_job(batch, store) -> None:
    workers_do(store, "")
    spec, _ = done(store, Stage.health)
    (ended,) = reap.end_jobs_of(store, spec.config, "flow-run-1")
    assert ended.action == "ended"
    over(batch)
    assert all(life.stopped for life in batch.lives())
    assert find_next(store, spec.job_prefix) == Next(spec=None)
    done(store, Stage.warmup)
    assert jobs(batch) == [("health", "FAILED"), ("warmup", "RUNNING")]


def test_the_reaper_spares_a_job_whose_later_stage_is_waited_for(batch, store) -> None:
    workers_do(store, 'stage == "warmup" and wait_for("go")')
    done(store, Stage.health)
    spec = spec_of(store, Stage.warmup)
    seen = []

    def look() -> None:
        seen.extend(reap.reap(store, spec.config, grace_minutes=0.0, ask_prefect=False).jobs)
        store.write("go", b"")

    run(store, spec, Waiting("warmup 1 begins", look))
    assert [(one.action, one.why) for one in seen] == [("kept", "a process waits for it")]
    (waits,) = reap.reap(store, spec.config, grace_minutes=0.0, ask_prefect=False).jobs
    assert waits.action == "ended"
    over(batch)
    assert not BatchRunner(store, spec.config).found(spec)


def test_the_end_of_a_run_lets_its_waiting_job_go(batch, store) -> None:
    workers_do(store, "")
    done(store, Stage.health)
    let_go(store, "f00d")
    over(batch)
    assert jobs(batch) == [("health", "SUCCEEDED")]


def test_a_stage_for_other_machines_lets_the_waiting_job_go(batch, store) -> None:
    workers_do(store, "")
    done(store, Stage.health)
    done(store, Stage.infer)
    over(batch)
    assert jobs(batch) == [("health", "SUCCEEDED"), ("infer", "SUCCEEDED")]


def test_more_workers_than_the_job_has_are_a_job_of_their_own(batch, store) -> None:
    workers_do(store, "")
    done(store, Stage.health)
    done(store, Stage.warmup, workers=2)
    assert [name for name, _ in jobs(batch)] == ["health", "warmup"]


def test_each_stage_of_a_job_has_the_time_of_an_attempt(batch, store) -> None:
    workers_do(store, 'stage == "warmup" and time.sleep(90)')
    settings = ("batch.attempt_seconds=60",)
    done(store, Stage.health, *settings)
    (job,) = batch.jobs()
    assert job["timeout"]["attemptDurationSeconds"] == 4 * (60 + 20)


def test_the_first_decision_about_a_job_holds(store) -> None:
    spec = spec_of(store, Stage.warmup)
    other = spec_of(store, Stage.warmup, attempt=2)
    prefix = "runs/f00d/health/attempt-1"
    assert decide(store, prefix, key_of(spec)).spec == key_of(spec)
    assert decide(store, prefix, key_of(other)).spec == key_of(spec)
    assert decide(store, prefix, None).spec == key_of(spec)

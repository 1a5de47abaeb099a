"""Stages executed by the emulator of AWS Batch: their results, failures and wrong setups."""

import time

import pytest

from infra.compute.batch.claim import find_lease_end
from infra.compute.batch.job import job_name
from infra.compute.batch.runner import BatchRunner
from tasks.contracts.stages import Stage
from tasks.foundation.errors import (
    CapacityError,
    ConfigError,
    DataError,
    FailureClass,
    HangError,
    OutOfMemoryError,
    StageError,
)
from tests.support.cloud.batch import definition
from tests.support.cloud.containers import containers_do
from tests.support.cloud.waiters import Waiting, going, run, state_of
from tests.support.workspace.specs import written_spec

# --- what comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "workers", "lines", "hosts"),
    [
        (Stage.validate, 1, {"0 None"}, 1),
        (Stage.validate, 2, {"[0] 0 0", "[1] 0 1"}, 2),
        (Stage.health, 1, {"0 None"}, 1),
        (Stage.health, 2, {"[node 0] 0 None", "[node 1] 1 None"}, 2),
        (Stage.infer, 1, {"0 None"}, 1),
        (Stage.infer, 3, {"[0] 0 0", "[1] 0 1", "[2] 0 2"}, 3),
    ],
)
def test_a_stage_runs_as_one_job_of_its_kind(batch, store, stage, workers, lines, hosts) -> None:
    body = 'say(f"{node} {index}"); open(f"{submitted}/at-{node}", "w"); node or workers < 2 or wait_for("at-1")'
    containers_do(store, f"workers = {workers if stage is Stage.health else 1}\n{body}")
    spec = written_spec(store, stage, workers)
    waiter = run(store, spec)
    assert lines <= set(waiter.lines)
    (only,) = waiter.tries
    assert (only.attempt, only.failure, len(only.hosts)) == (1, None, hosts)
    assert only.billable_seconds == pytest.approx(only.running * hosts, rel=0.9)
    (job,) = batch.jobs()
    assert (job["jobId"], job["status"]) == (only.job, "SUCCEEDED")
    assert job["tags"]["millrace-flow-run"] == "flow-run-1"
    assert state_of(store, spec) == "over"
    assert not BatchRunner(store, spec.config).found(spec)


def test_lines_and_progress_arrive_while_the_job_runs(batch, store) -> None:
    containers_do(store, 'progress(1, 2); say("up"); wait_for("go"); say("done")')
    spec = written_spec(store, Stage.validate)
    waiter = run(store, spec, Waiting("up", going(store, spec)))
    assert [(step.done, step.total) for step in waiter.steps] == [(1, 2)]
    assert waiter.lines.index("up") < waiter.lines.index("done")


def test_the_last_lines_arrive_after_the_jobs_end(batch, store, monkeypatch) -> None:
    monkeypatch.setattr("infra.compute.batch.watch.LAST_LOOKS", (0.2, 0.8))
    batch.delay(logs=0.8)
    containers_do(store, 'say("last words")')
    assert "last words" in run(store, written_spec(store, Stage.validate)).lines


def test_denied_logs_are_reported_once_and_the_result_still_arrives(batch, store) -> None:
    batch.deny("GetLogEvents")
    containers_do(store, 'say("up"); time.sleep(0.5)')
    waiter = run(store, written_spec(store, Stage.validate))
    assert len([line for line in waiter.lines if "denied logs:GetLogEvents" in line]) == 1


def test_lines_say_where_the_job_is_while_it_waits(batch, store) -> None:
    batch.delay(scheduling=0.3, starting=0.3)
    containers_do(store, "")
    spec = written_spec(store, Stage.health)
    waiter = run(store, spec)
    lines = "\n".join(waiter.lines)
    assert f"{job_name(spec)} (" in lines
    assert "is RUNNABLE: " in lines
    assert "queue millrace-accelerator" in lines
    assert "is STARTING on " in lines
    assert waiter.tries[0].queued >= 0.3
    assert waiter.tries[0].booting > 0.1


def test_a_waiting_runner_keeps_its_lease_and_its_claims_state(batch, store) -> None:
    states: list[str | None] = []
    attended: list[bool] = []
    spec = written_spec(store, Stage.validate)

    class Curious(Waiting):
        def pulse(self) -> None:
            states.append(state_of(store, spec))
            attended.append(find_lease_end(store, spec.job_prefix) > time.time())

    batch.throttle("SubmitJob", 2)
    containers_do(store, "time.sleep(0.3)")
    run(store, spec, Curious())
    assert list(dict.fromkeys(states)) == ["claimed", "submitted"]
    assert all(attended)
    assert state_of(store, spec) == "over"


@pytest.mark.shows("retries")
def test_a_lost_host_is_retried_by_batch_and_both_tries_are_reported(batch, store) -> None:
    containers_do(store, 'say("up"); time.sleep(60) if number == 1 else wait_for("go")')
    batch.kill_host_when_log("*", "up", index=0)  # the main node's: the loss of another ends no job by itself
    spec = written_spec(store, Stage.health, 2)
    waiter = run(store, spec, Waiting("tried", going(store, spec)))
    lost, done = waiter.tries
    assert (lost.attempt, lost.failure, done.attempt, done.failure) == (1, FailureClass.HOST, 2, None)
    assert "(instance i-" in lost.message
    assert set(lost.hosts) != set(done.hosts)
    assert len(batch.jobs()) == 1


@pytest.mark.shows("retries")
def test_a_transient_exit_code_is_retried_until_the_budget_is_used_up(batch, store) -> None:
    containers_do(store, 'fail("STORE", f"no space, try {number}", 74)')
    waiter = Waiting()
    spec = written_spec(store, Stage.validate)
    with pytest.raises(StageError, match="no space, try 2") as raised:
        run(store, spec, waiter, tries=2)
    assert raised.value.failure is FailureClass.STORE
    assert [(one.attempt, one.message) for one in waiter.tries] == [(1, "no space, try 1"), (2, "no space, try 2")]


@pytest.mark.shows("retries")
def test_a_permanent_failure_is_not_retried_and_names_job_and_log_stream(batch, store) -> None:
    containers_do(store, 'fail("DATA", "row 7 has no label", 65)')
    waiter = Waiting()
    with pytest.raises(DataError) as raised:
        run(store, written_spec(store, Stage.validate), waiter)
    (job,) = batch.jobs()
    stream = job["container"]["logStreamName"]
    where = f"(AWS Batch job {job['jobId']}, log stream {stream} in LogGroup)"
    assert str(raised.value).startswith("row 7 ")
    assert where in str(raised.value)
    assert len(waiter.tries) == 1


def test_the_error_of_a_silent_container_has_its_last_lines(batch, store) -> None:
    containers_do(store, 'say("about to fall"); sys.exit(3)')
    with pytest.raises(StageError, match=r"(?s)with 3; .*to fall\n\("):
        run(store, written_spec(store, Stage.validate))


def test_one_failed_child_fails_the_array(batch, store) -> None:
    containers_do(store, 'index == "1" and fail("DATA", "row 7 has no label", 65)')
    with pytest.raises(DataError, match=r"row 7 .*\(child 1 "):
        run(store, written_spec(store, Stage.infer, 3))


def test_no_machine_in_time_is_capacity_and_ends_the_job(batch, store) -> None:
    batch.hold_runnable()
    spec = written_spec(store, Stage.infer, 2, "batch.capacity_seconds=1")
    waiter = Waiting()
    with pytest.raises(CapacityError, match="millrace-accelerator for"):
        run(store, spec, waiter)
    assert [job["status"] for job in batch.jobs()] == ["FAILED"]
    assert (state_of(store, spec), len(batch.lives())) == ("over", 0)
    (only,) = waiter.tries
    assert (only.failure, only.billable_seconds, only.running) == (FailureClass.CAPACITY, 0.0, 0.0)
    assert only.queued >= 1.0


@pytest.mark.parametrize("off", [-86_400.0, 7_200.0])
def test_the_clock_of_this_machine_does_not_decide_about_capacity(batch, store, monkeypatch, off) -> None:
    batch.hold_runnable()
    spec, time_of, began = written_spec(store, Stage.infer, 2, "batch.capacity_seconds=3"), time.time, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: time_of() + off)
    with pytest.raises(CapacityError, match="no machine in queue"):
        run(store, spec, Waiting())
    assert time.monotonic() - began > 1.9  # a date is in whole seconds


def test_a_job_that_has_its_machine_is_not_held_to_the_capacity_timeout(batch, store) -> None:
    containers_do(store, "time.sleep(1.5)")
    run(store, written_spec(store, Stage.infer, 2, "batch.capacity_seconds=1"))


@pytest.mark.parametrize(
    ("strike", "error", "says"),
    [
        (lambda batch: batch.fail_pull("*"), ConfigError, "millrace/neuronrepository:none could not be pulled"),
        (lambda batch: batch.out_of_memory("*", text="up"), OutOfMemoryError, "ran out of memory"),
        (lambda batch: batch.scale_timeouts(0.01), HangError, "longer than batch.attempt_seconds = 60"),
    ],
)
def test_a_failure_that_only_batch_sees_has_its_class(batch, store, strike, error, says) -> None:
    containers_do(store, 'say("up"); time.sleep(30)')
    strike(batch)
    waiter = Waiting()
    with pytest.raises(error, match=says):
        run(store, written_spec(store, Stage.health, 1, "batch.attempt_seconds=60"), waiter)
    assert len(waiter.tries) == 1


@pytest.mark.parametrize(
    ("wrong", "overrides", "says"),
    [
        (None, ["batch.accelerator_queue=nowhere"], "no AWS Batch job queue 'nowhere' in region us-east-1;.*batch.acc"),
        (None, ["batch.definition=no-{stage}"], "no active AWS Batch job definition 'no-health' in region us-east-1;"),
        (None, ["batch.definition=odd-{stage}"], "'odd-health' .* must be of type multinode for stage health, and is"),
        (None, ["batch.accelerator_queue=closed"], "job queue 'closed' in region us-east-1 is disabled; enable it"),
        ("refuse_credentials", [], "does not accept the AWS credentials .*; sign in again or correct them"),
        ("deny SubmitJob", [], "denied batch:SubmitJob on job queue 'millrace-accelerator' with job definition 'mill"),
        ("deny DescribeJobQueues", [], "denied batch:DescribeJobQueues on job queue 'millrace-accelerator' in us-east"),
    ],
)
def test_a_wrong_setup_is_one_sentence_and_submits_nothing(batch, store, wrong, overrides, says) -> None:
    if "closed" in str(overrides):
        order = {"jobQueueName": "closed", "priority": 1, "computeEnvironmentOrder": [], "state": "DISABLED"}
        batch.request("v1/createjobqueue", order)
    if "odd" in str(overrides):
        batch.request("v1/registerjobdefinition", definition("validate") | {"jobDefinitionName": "odd-health"})
    if wrong:
        name, _, operation = wrong.partition(" ")
        getattr(batch, name)(*([operation] if operation else []))
    spec = written_spec(store, Stage.health, 1, *overrides)
    with pytest.raises(ConfigError, match=says) as raised:
        run(store, spec)
    assert "\n" not in str(raised.value)
    assert batch.jobs() == []
    assert state_of(store, spec) in (None, "over")


def test_a_missing_region_or_credentials_are_named(batch, store, monkeypatch, tmp_path) -> None:
    spec = written_spec(store, Stage.validate)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="AWS Batch in us-east-1"):
        run(store, spec)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ConfigError, match="AWS_DEFAULT_REGION"):
        run(store, spec)

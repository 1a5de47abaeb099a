"""Each attempt has one job, also after errors of AWS Batch, a lost waiter or an earlier attempt."""

import datetime as dt
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.compute.batch import api, runner
from infra.compute.batch import job as batch_job
from infra.compute.batch.claim import Claim, advance, make_claim, owner_of, read_claim
from infra.compute.batch.job import job_name
from infra.compute.batch.runner import BatchRunner
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec
from tasks.contracts.stages import Stage
from tasks.foundation.errors import CancelledError, ConfigError, DataError, FailureClass, HostError
from tests.support.cloud.batch import BatchServer
from tests.support.cloud.containers import containers_do
from tests.support.cloud.waiters import WAITS, Dying, Waiting, going, run, state_of
from tests.support.workspace.specs import written_spec


@pytest.fixture
def quick_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submitted job has no time to become visible."""
    monkeypatch.setattr(batch_job, "VISIBILITY_SECONDS", 0.2)
    monkeypatch.setattr(batch_job, "_LOOK_EVERY_SECONDS", 0.1)


@pytest.mark.parametrize("trouble", ["throttle", "fail_calls"])
def test_a_stage_survives_throttling_and_server_errors(batch: BatchServer, store, trouble, quick_look_up) -> None:
    containers_do(store, WAITS)
    spec = written_spec(store, Stage.validate)
    for operation in ("DescribeJobQueues", "DescribeJobDefinitions", "SubmitJob", "DescribeJobs", "ListJobs"):
        getattr(batch, trouble)(operation, 2)
    getattr(batch, trouble)("GetLogEvents", 1)
    run(store, spec, Waiting("up", going(store, spec)))
    assert len(batch.jobs()) == 1


@pytest.mark.shows("found again")
@pytest.mark.parametrize(("lost_reply", "hidden_seconds"), [(True, 0), (True, 1.5), (False, 0.8)])
def test_a_lost_reply_or_a_job_shown_late_makes_no_second_job(batch, store, lost_reply, hidden_seconds) -> None:
    if lost_reply:
        batch.lose_reply("SubmitJob")
    if hidden_seconds:
        batch.hide_jobs(hidden_seconds)
    containers_do(store, "")
    run(store, written_spec(store, Stage.validate))
    assert [job["status"] for job in batch.jobs()] == ["SUCCEEDED"]


def lose_waiter(store: DirectoryStore, spec: JobSpec) -> None:
    """Run the stage with a waiter that dies while the job runs."""
    with pytest.raises(HostError, match="gone"):
        run(store, spec, Dying(HostError("gone")))


@pytest.mark.parametrize("stage", [Stage.validate, Stage.health])
def test_the_job_that_owns_the_attempt_is_kept(batch, store, stage, quick_look_up) -> None:
    """The first job becomes visible very late: the second ends at once, and the first one's end counts."""
    batch.lose_reply("SubmitJob")
    batch.hide_jobs(1.2)
    containers_do(store, 'open(f"{submitted}/worked-{job}", "w"); time.sleep(1.5)')
    spec = written_spec(store, stage)
    waiter = run(store, spec)
    first, second = batch.jobs()
    assert (first["status"], second["status"]) == ("SUCCEEDED", "FAILED")
    assert [one.job for one in waiter.tries] == [first["jobId"]]
    assert owner_of(store, spec.job_prefix) == first["jobId"]
    assert len(list(Path(store.root, spec.job_prefix).glob("worked-*"))) == 1
    claim = read_claim(store, spec.job_prefix)
    assert claim is not None
    assert (claim.state, claim.job_id) == ("over", first["jobId"])


def test_a_second_job_that_gets_no_machine_is_not_waited_for(batch, store, quick_look_up) -> None:
    batch.lose_reply("SubmitJob")
    batch.hide_jobs(3)
    containers_do(store, "time.sleep(1.0)")
    spec = written_spec(store, Stage.validate)

    def hold_the_second() -> None:
        until_true(lambda: owner_of(store, spec.job_prefix) is not None)  # else the first would never start
        batch.forgive()
        batch.hold_runnable()

    waiter = run(store, spec, Waiting("looking whether the job is there", hold_the_second))
    first, second = batch.jobs()
    assert (first["status"], second["status"]) == ("SUCCEEDED", "FAILED")
    assert [one.job for one in waiter.tries] == [first["jobId"]]


def test_lost_contact_leaves_the_job_and_running_again_finds_it(batch, store, monkeypatch) -> None:
    monkeypatch.setattr(api, "CONTACT_SECONDS", 0.5)
    containers_do(store, WAITS)
    spec = written_spec(store, Stage.validate)
    with pytest.raises(HostError, match=r"AWS Batch in us-east-1"):
        run(store, spec, Waiting("up", lambda: batch.fail_calls("*", None)))
    assert state_of(store, spec) == "submitted"
    batch.forgive()
    assert BatchRunner(store, spec.config).found(spec)
    going(store, spec)()
    run(store, spec)
    assert len(batch.jobs()) == 1


def test_a_role_that_gets_expired_credentials_during_a_long_job_leaves_the_job(batch, store, monkeypatch, tmp_path):
    def role_gives(minutes: int) -> None:
        until = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes)  # below ten, botocore asks before each request
        keys = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": until.isoformat()}
        (tmp_path / "given.json").write_text(json.dumps(keys))

    (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {tmp_path}/given.json\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr(api, "CONTACT_SECONDS", 0.5)
    role_gives(5)
    containers_do(store, WAITS)
    spec = written_spec(store, Stage.validate)
    with pytest.raises(HostError, match=r"lost contact .*still expired.* running the span again finds it"):
        run(store, spec, Waiting("up", lambda: role_gives(-5)))
    role_gives(5)
    going(store, spec)()
    run(store, spec)
    assert len(batch.jobs()) == 1


def test_a_session_that_expires_during_a_job_says_that_the_job_goes_on(batch, store) -> None:
    containers_do(store, WAITS)
    spec = written_spec(store, Stage.validate)
    with pytest.raises(ConfigError, match=r"sign in again or correct them; job \S+ keeps running, .* finds it$"):
        run(store, spec, Waiting("up", batch.refuse_credentials))
    batch.forgive()
    going(store, spec)()
    run(store, spec)
    assert len(batch.jobs()) == 1


@pytest.mark.parametrize("error", [CancelledError("the flow run is cancelled"), KeyboardInterrupt("stop")])
def test_an_interruption_ends_the_job(batch, store, error) -> None:
    containers_do(store, 'say("up"); time.sleep(60)')
    spec = written_spec(store, Stage.health, 2)
    waiter = Dying(error)
    with pytest.raises(type(error)) as raised:
        run(store, spec, waiter)
    assert raised.value is error
    (job,) = batch.jobs()
    assert (job["status"], job["isTerminated"]) == ("FAILED", True)
    assert str(error) in job["statusReason"]
    assert all(life.stopped for life in batch.lives())
    assert state_of(store, spec) == "over"
    assert [one.failure for one in waiter.tries] == [FailureClass.CANCELLED]
    assert not BatchRunner(store, spec.config).found(spec)


def test_a_new_attempt_begins_when_the_job_of_the_last_one_is_over(batch, store, monkeypatch) -> None:
    monkeypatch.setattr(runner, "ENDING_SECONDS", 0.2)
    containers_do(store, 'import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); say("up"); time.sleep(60)')
    first = written_spec(store, Stage.validate)
    waiter = Dying(CancelledError("stop"))
    with pytest.raises(CancelledError, match="stop"):
        run(store, first, waiter)
    assert state_of(store, first) == "ending"
    assert "next attempt" in waiter.lines[-1]
    containers_do(store, "")
    second = written_spec(store, Stage.validate, attempt=2)
    run(store, second)
    assert (state_of(store, first), state_of(store, second)) == ("over", "over")
    assert batch.max_live() == 1


def test_an_interrupted_submission_is_finished_by_the_next_attempt(batch, store, monkeypatch, quick_look_up) -> None:
    monkeypatch.setattr(runner, "ENDING_SECONDS", 0.4)
    batch.throttle("SubmitJob", None)
    first = written_spec(store, Stage.validate)

    class Impatient(Waiting):
        def pulse(self) -> None:
            if state_of(store, first) == "claimed":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(store, first, Impatient())
    assert state_of(store, first) == "ending"
    batch.forgive()
    containers_do(store, "")
    second = written_spec(store, Stage.validate, attempt=2)
    run(store, second)
    assert (state_of(store, first), state_of(store, second), len(batch.jobs())) == ("over", "over", 1)


def test_a_new_attempt_does_not_start_while_an_earlier_job_still_runs(batch, store, monkeypatch) -> None:
    monkeypatch.setattr(runner, "EARLIER_SECONDS", 0.2)
    containers_do(store, f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}")
    first = written_spec(store, Stage.validate)
    lose_waiter(store, first)
    second = written_spec(store, Stage.validate, attempt=2)
    with pytest.raises(HostError, match=r"asked to end .*not over"):
        run(store, second)
    assert state_of(store, second) is None
    assert len(batch.jobs()) == 1


@pytest.mark.shows("found again")
def test_a_job_whose_waiter_died_is_found_again_while_it_runs(batch, store) -> None:
    containers_do(store, WAITS)
    spec = written_spec(store, Stage.health, 2)
    lose_waiter(store, spec)
    assert state_of(store, spec) == "submitted"
    again = BatchRunner(store, spec.config)
    assert again.found(spec)
    waiter = run(store, spec, Waiting("up", going(store, spec)))
    assert [one.failure for one in waiter.tries] == [None]
    assert len(batch.jobs()) == 1
    assert not again.found(spec)


@pytest.mark.parametrize("body", [WAITS, f'{WAITS}; fail("DATA", "row 7 has no label", 65)'])
def test_a_job_whose_waiter_died_is_found_again_after_its_end(batch, store, body) -> None:
    containers_do(store, body)
    spec = written_spec(store, Stage.validate)
    lose_waiter(store, spec)
    going(store, spec)()
    until_true(lambda: batch.jobs()[0]["status"] in ("SUCCEEDED", "FAILED"))
    if "fail" in body:
        with pytest.raises(DataError, match="row 7 has no label"):
            run(store, spec)
    else:
        run(store, spec)
    assert len(batch.jobs()) == 1
    assert state_of(store, spec) == "over"


def test_a_job_whose_waiter_died_during_submission_is_found_by_name(batch, store) -> None:
    containers_do(store, WAITS)
    spec = written_spec(store, Stage.validate)
    lose_waiter(store, spec)
    claim = read_claim(store, spec.job_prefix)
    assert claim is not None
    unsure = claim.model_copy(update={"state": "claimed", "job_id": None})
    store.write(f"{spec.job_prefix}/job.json", unsure.to_json())
    run(store, spec, Waiting("up", going(store, spec)))
    assert len(batch.jobs()) == 1


def test_the_claim_of_a_waiter_that_died_before_submission_is_used(batch, store, quick_look_up) -> None:
    containers_do(store, "")
    spec = written_spec(store, Stage.validate)
    claim = Claim(
        name=job_name(spec), state="claimed", job_id=None, queue="millrace-cpu", flow_run="", claimed_at="now"
    )
    assert make_claim(store, spec.job_prefix, claim)
    assert BatchRunner(store, spec.config).found(spec)
    run(store, spec)
    assert len(batch.jobs()) == 1


def test_an_attempt_that_was_given_up_is_not_continued(batch, store) -> None:
    containers_do(store, WAITS)
    spec = written_spec(store, Stage.validate)
    lose_waiter(store, spec)
    advance(store, spec.job_prefix, "ending")
    assert not BatchRunner(store, spec.config).found(spec)
    with pytest.raises(CancelledError, match="attempt 1 was asked"):
        run(store, spec)
    assert batch.jobs()[0]["status"] == "FAILED"


def test_an_attempt_given_up_during_submission_has_its_job_ended(batch, store) -> None:
    containers_do(store, "time.sleep(60)")
    spec = written_spec(store, Stage.validate)

    class Reaped(Waiting):
        def pulse(self) -> None:
            if state_of(store, spec) == "claimed":
                advance(store, spec.job_prefix, "ending")

    batch.throttle("SubmitJob", 1)
    with pytest.raises(CancelledError, match="was asked to end"):
        run(store, spec, Reaped())
    assert [job["status"] for job in batch.jobs()] == ["FAILED"]
    assert state_of(store, spec) == "over"


def test_a_job_unknown_to_batch_makes_room_for_another(batch, store, monkeypatch) -> None:
    monkeypatch.setattr("infra.compute.batch.watch.UNKNOWN_SECONDS", 0.2)
    containers_do(store, WAITS)
    spec = written_spec(store, Stage.validate)
    lose_waiter(store, spec)
    batch.forget()
    with pytest.raises(HostError, match="does not know job"):
        run(store, spec)
    assert not BatchRunner(store, spec.config).found(spec)


def until_true(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)

"""The times of a schedule, and runs that are late or will be late."""

import datetime as dt

import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import HealthInputs, Inputs, JobSpec, TrainInputs
from tasks.contracts.outcomes import Phases
from tasks.contracts.runs import RunPlan
from tasks.foundation.errors import ConfigError, DataError, FailureClass, HostError
from tasks.monitoring.deadlines import last_fire
from tasks.runs import ledger
from tests.support.fakes.fake_runner import FakeRunner, ingest
from tests.support.fakes.stages import carry_out
from tests.support.workspace.invocations import write_invocation
from tests.tasks.monitoring.looks import locked, look, problem, recorded_run, train


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


@pytest.mark.parametrize(
    ("cron", "zone", "at", "fired"),
    [
        ("0 6 * * *", "Europe/Berlin", "2026-03-29T03:59:59+00:00", "2026-03-28T05:00:00+00:00"),
        ("0 6 * * *", "Europe/Berlin", "2026-03-29T04:00:00+00:00", "2026-03-29T04:00:00+00:00"),  # clocks went forward
        ("0 6 * * *", "Europe/Berlin", "2026-10-25T04:59:59+00:00", "2026-10-24T04:00:00+00:00"),
        ("0 6 * * *", "Europe/Berlin", "2026-10-25T05:00:00+00:00", "2026-10-25T05:00:00+00:00"),  # clocks went back
        ("0 2 * * *", "Europe/Berlin", "2026-03-29T00:00:00+00:00", "2026-03-28T01:00:00+00:00"),  # an hour before that
        ("0 2 * * *", "Europe/Berlin", "2026-03-29T07:00:00+00:00", "2026-03-29T01:00:00+00:00"),  # there is no 02:00
        ("0 * * * *", "Europe/Berlin", "2026-10-25T01:15:00+00:00", "2026-10-25T01:00:00+00:00"),  # 02:00 comes twice
        ("* * 1 1 *", "UTC", "2026-11-13T07:00:00+00:00", "2026-01-01T23:59:00+00:00"),  # many dates on one day
        ("0 6 29 2 *", "UTC", "2026-11-13T07:00:00+00:00", "2024-02-29T06:00:00+00:00"),  # years ago
        ("*/5 * * * *", "UTC", "2026-11-13T07:00:00+00:00", "2026-11-13T07:00:00+00:00"),
    ],
)
def test_the_last_scheduled_time_is_found_in_its_time_zone(cron, zone, at, fired):
    found = last_fire(cron, zone, dt.datetime.fromisoformat(at))
    assert found == dt.datetime.fromisoformat(fired)


def test_a_cron_line_that_is_not_understood_is_named():
    with pytest.raises(ConfigError, match=r"schedule\.cron '0 6 "):
        last_fire("0 6 * * 9", "UTC", dt.datetime.now(dt.UTC))


@pytest.fixture
def running(store, runner: FakeRunner, config) -> RunPlan:
    """Three days, of which the last is running; each stage of the fake workers takes 9.75 s."""
    train(store, config, "2026-11-10", "2026-11-11")
    ingest(store, "2026-11-12")
    return recorded_run(store, config, "2026-11-12")


@pytest.mark.parametrize(
    ("at", "standing", "expected"),
    [
        ("2026-11-13T08:58:50+00:00", "on time", "2026-11-13T08:59:58+00:00"),  # seven stages take 68.25 s
        ("2026-11-13T08:58:53+00:00", "will be late", "2026-11-13T09:00:01+00:00"),
        ("2026-11-13T09:30:00+00:00", "late", "2026-11-13T09:31:08+00:00"),
    ],
)
def test_the_expected_end_follows_from_the_stages_left(store, config, running, at, standing, expected, golden):
    with locked(store):
        report = look(store, config, at)
    (clock,) = report.clocks
    assert (clock.standing, clock.expected_end, clock.lost) == (standing, expected, False)
    if standing == "late":
        late = problem(report, "late")
        golden(late.sentence)
        assert late.way_out.endswith("http://ui/runs/flow-run/1")


def spec_of(store: Store, plan: RunPlan, attempt: int, inputs: Inputs) -> JobSpec:
    return JobSpec(
        run_key=plan.run_key,
        span=plan.span,
        attempt=attempt,
        submitted_as=attempt,
        workspace=store.uri,
        workers=1,
        config=plan.config,
        inputs=inputs,
    )


def test_a_stage_that_runs_has_less_left(store, config, running):
    spec = spec_of(store, running, 1, HealthInputs())
    record = ledger.OpenAttempt.begin(store, spec).record.model_copy(
        update={"started_at": "2026-11-13T08:00:00.000000+00:00"}
    )
    store.write(f"{spec.attempt_prefix}/ledger.json", record.to_json())
    with locked(store):
        (early,) = look(store, config, "2026-11-13T08:00:05+00:00").clocks
        (overdue,) = look(store, config, "2026-11-13T08:30:00+00:00").clocks
    assert early.expected_end == "2026-11-13T08:01:08+00:00"  # 68.25 s, of which 5 are over
    assert overdue.expected_end == "2026-11-13T08:30:58+00:00"  # six other stages


def test_without_earlier_runs_the_invocation_gives_the_expected_end(store, runner: FakeRunner, config):
    ingest(store, "2026-11-12")
    recorded_run(store, config, "2026-11-12", expected_seconds=7200.0)
    with locked(store):
        (clock,) = look(store, config, "2026-11-13T06:00:00+00:00").clocks
    assert clock.expected_end == "2026-11-13T07:00:05+00:00"


def test_a_lost_run_is_late_too_once_its_deadline_is_past(store, config, running):
    report = look(store, config, "2026-11-13T09:30:00+00:00")
    assert [(clock.standing, clock.lost) for clock in report.clocks] == [("late", True)]
    assert "was lost" in problem(report, "late").sentence


@pytest.mark.parametrize(("at", "count"), [("2026-11-14T09:00:00+00:00", 1), ("2026-11-14T10:00:00+00:00", 0)])
def test_a_run_that_ended_late_is_shown_for_a_day(store, config, running, at, count):
    carry_out(running)
    write_invocation(store, running, ended_at="2026-11-13T09:30:00+00:00", state="Released")
    clocks = look(store, config, at).clocks
    assert [clock.standing for clock in clocks] == ["late"] * count


def attempt(store: DirectoryStore, plan: RunPlan, number: int, error: Exception, seconds: Phases) -> None:
    """A failed attempt of training that lost the time in `seconds`."""
    spec = spec_of(store, plan, number, TrainInputs(rows=(), history=(), parent=None))
    record = ledger.OpenAttempt.begin(store, spec).end(0.0, error)
    changes = {"seconds": seconds, "started_at": f"2026-11-13T05:{number:02d}:10.000000+00:00"}
    store.write(f"{spec.attempt_prefix}/ledger.json", record.model_copy(update=changes).to_json())


@pytest.mark.parametrize(("queued", "blamed"), [(60.0, FailureClass.HOST), (9000.0, FailureClass.CAPACITY)])
def test_a_late_run_is_blamed_on_the_class_or_the_queue_that_cost_most(store, config, running, queued, blamed):
    attempt(store, running, 1, HostError("gone"), Phases(lost=600.0))
    attempt(store, running, 2, DataError("bad"), Phases(lost=90.0))
    attempt(store, running, 3, HostError("gone"), Phases(lost=600.0, queued=queued))
    with locked(store):
        (clock,) = look(store, config, "2026-11-13T09:30:00+00:00").clocks
    assert clock.failure is blamed


def test_a_run_that_began_hours_late_is_blamed_on_capacity(store, config, running):
    write_invocation(store, running, began_at="2026-11-13T08:30:00+00:00")
    with locked(store):
        (clock,) = look(store, config, "2026-11-13T09:30:00+00:00").clocks
    assert clock.failure is FailureClass.CAPACITY

"""How fresh the vectors are and what is wrong: daily spans, trained each morning at six in Berlin."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import infra.compute.factory
from configs.schema.config import Config
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tasks.contracts.jobs import HealthInputs, JobSpec, TrainInputs
from tasks.contracts.results import Phases
from tasks.contracts.runs import RunPlan, RunState
from tasks.contracts.spans import after
from tasks.contracts.stages import Stage
from tasks.foundation.errors import ConfigError, DataError, FailureClass, HostError
from tasks.monitoring import span_progress
from tasks.monitoring.freshness import FreshnessReport, freshness
from tasks.monitoring.problems import Problem, named, together
from tasks.monitoring.schedule import last_fire
from tasks.monitoring.span_progress import ROWS, SpanRow
from tasks.runs import branches, invocations, ledger
from tasks.runs.plan import plan_run, save_plan
from tests.support.fakes.fake_runner import FakeRunner, commit_files, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.workspace.invocations import write_invocation

DAILY = ("schedule.cron=0 6 * * *", "schedule.timezone=Europe/Berlin", "freshness.target_hours=36")
MORNING = "2026-11-13T07:00:00+01:00"  # an hour after the run that takes 2026-11-12


@pytest.fixture
def config() -> Config:
    return small_config(*DAILY, "freshness.deadline_hours=4")


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def days(first: str, last: str) -> list[str]:
    names = [first]
    while names[-1] != last:
        names.append(after(names[-1]))
    return names


def train(store: Store, config: Config, *spans: str) -> None:
    """Ingest and run the spans, each by itself."""
    for span in spans:
        ingest(store, span)
        carry_out(plan_run(store, config, span))


def seen(store: Store, config: Config, at: str = MORNING) -> FreshnessReport:
    return freshness(store, config, dt.datetime.fromisoformat(at))


def row(report: FreshnessReport, span: str) -> SpanRow:
    (found,) = [one for one in report.spans if one.span == span]
    return found


def told(report: FreshnessReport) -> list[tuple[str, tuple[str, ...]]]:
    return [(problem.kind, problem.spans) for problem in report.problems]


def problem(report: FreshnessReport, kind: str) -> Problem:
    (found,) = [one for one in report.problems if one.kind == kind]
    return found


def asked(store: Store, config: Config, span: str, **changes: Any) -> RunPlan:
    """A run that was asked for, by its record alone."""
    plan = plan_run(store, config, span)
    save_plan(store, plan)
    write_invocation(store, plan, **changes)
    return plan


def held(store: Store, lineage: str = "main"):
    """The lineage in somebody's hands."""
    return store.lock(f"lineages/{lineage}.run")


# --- rows and age -------------------------------------------------------------------------------------------------


def test_a_span_is_followed_from_its_arrival_to_its_release(store, runner: FakeRunner, config):
    commit_files(
        store, "spans/2026-11-12/v1", {"p": "x"}, "span", rows=40, ingested_at="2026-11-13T03:12:00.000000+00:00"
    )
    plan = plan_run(store, config)
    carry_out(plan)
    report = seen(store, config)
    one = row(report, "2026-11-12")
    ended = {record.stage: record.ended_at for record in ledger.records(store, plan.run_key)}
    assert one.state == "Released"
    assert one.arrived_at == "2026-11-13T03:12:00.000000+00:00"
    assert (one.validated_at, one.trained_at) == (ended[Stage.validate], ended[Stage.train])
    assert (one.evaluated_at, one.embedded_at) == (ended[Stage.evaluate], ended[Stage.infer])
    assert one.released_at == ended[Stage.release]
    assert (one.version, one.trained_version, one.run_key) == (1, 1, plan.run_key)
    assert one.ends_at == "2026-11-13T00:00:00+00:00"
    assert report.problems == ()
    assert report.sentence == "Nothing is amiss: the released vectors hold 2026-11-12, 6 h old."


def test_the_age_is_that_of_the_newest_released_data(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    report = seen(store, config)
    assert (report.release, report.newest, report.age_hours) == (2, "2026-11-12", 6.0)
    assert (report.newest_ended_at, report.stale_at) == ("2026-11-13T00:00:00+00:00", "2026-11-14T12:00:00+00:00")
    assert not report.stale


def test_vectors_are_stale_after_the_target_and_the_span_that_is_waited_for_is_named(store, runner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    assert not seen(store, config, "2026-11-14T12:00:00+00:00").stale
    report = seen(store, config, "2026-11-14T12:00:01+00:00")
    assert report.stale
    assert problem(report, "stale").sentence == (
        "The newest data in the released vectors, 2026-11-12, is 36 h old because 2026-11-13 has not arrived; "
        "the target is 36 h."
    )
    assert problem(report, "stale").way_out == "Once it has, its run starts by itself: millrace ingest"


def test_a_rejected_span_is_no_problem_until_the_vectors_are_stale(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    train(store, config, "2026-11-12")
    report = seen(store, config, "2026-11-13T07:00:00+00:00")
    assert row(report, "2026-11-12").state == "Rejected"
    assert (report.newest, report.problems) == ("2026-11-11", ())
    late = seen(store, config, "2026-11-13T12:30:00+00:00")
    assert " because the model of 2026-11-12 was rejected; the target is " in problem(late, "stale").sentence
    assert problem(late, "stale").way_out == "The verdicts: millrace report --span 2026-11-12"


def test_nothing_ingested_and_nothing_trained_are_told(store, runner: FakeRunner, config):
    empty = seen(store, config)
    assert (empty.due, empty.spans, told(empty)) == (None, (), [("not arrived", ())])
    ingest(store, "2026-11-11", "2026-11-12")
    begun = seen(store, config)
    assert told(begun) == [("unreleased", ())]
    assert [one.state for one in begun.spans] == ["Arrived", "Arrived"]


def test_only_the_newest_spans_have_rows(store, config):
    spans = days("2026-08-01", "2026-11-12")
    ingest(store, *spans)
    report = seen(store, config)
    assert [one.span for one in report.spans] == spans[-ROWS:]
    assert report.older == len(spans) - ROWS


# --- missed spans -------------------------------------------------------------------------------------------------


def test_a_week_of_downtime_leaves_seven_missed_spans(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    week = days("2026-11-13", "2026-11-19")
    ingest(store, *week, "2026-11-20")  # the last has arrived before its time
    report = seen(store, config, "2026-11-20T07:00:00+01:00")
    assert report.missed == tuple(week)
    assert report.catch_up == "2026-11-19"
    assert [row(report, span).state for span in week] == ["Missed"] * 7
    assert row(report, "2026-11-20").state == "Arrived"
    assert problem(report, "missed").spans == tuple(week)
    assert problem(report, "missed").sentence == (
        "2026-11-13 to 2026-11-19 (7 spans) have arrived and were missed: no run took them."
    )


def test_a_week_without_data_has_gaps_and_misses_nothing(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    report = seen(store, config, "2026-11-20T07:00:00+01:00")
    assert (report.missed, report.catch_up) == ((), None)
    assert report.gaps == tuple(days("2026-11-13", "2026-11-19"))
    assert told(report) == [("stale", ("2026-11-12",)), ("not arrived", report.gaps)]
    assert row(report, "2026-11-19").state == "Absent"


def test_what_arrived_of_a_week_is_missed_and_the_rest_are_gaps(store, runner: FakeRunner, config):
    train(store, config, "2026-11-12")
    ingest(store, "2026-11-14", "2026-11-15", "2026-11-18")
    report = seen(store, config, "2026-11-20T07:00:00+01:00")
    assert report.missed == ("2026-11-14", "2026-11-15", "2026-11-18")
    assert report.gaps == ("2026-11-13", "2026-11-16", "2026-11-17", "2026-11-19")
    assert report.catch_up == "2026-11-18"


@pytest.mark.parametrize(
    ("at", "missed"),
    [
        ("2026-11-13T01:00:00+01:00", ()),  # over since an hour, and its run is due at six
        ("2026-11-13T06:10:00+01:00", ()),  # that may be beginning
        ("2026-11-13T06:15:00+01:00", ("2026-11-12",)),
    ],
)
def test_a_span_is_not_missed_before_its_run_should_have_begun(store, runner: FakeRunner, config, at, missed):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    assert seen(store, config, at).missed == missed


@pytest.mark.parametrize(
    ("at", "fired"),
    [
        ("2026-03-29T03:59:59+00:00", "2026-03-28T05:00:00+00:00"),
        ("2026-03-29T04:00:00+00:00", "2026-03-29T04:00:00+00:00"),  # the clock was set forward this night
        ("2026-10-25T04:59:59+00:00", "2026-10-24T04:00:00+00:00"),
        ("2026-10-25T05:00:00+00:00", "2026-10-25T05:00:00+00:00"),  # and back this one
    ],
)
def test_the_schedule_is_that_of_its_time_zone(at, fired):
    found = last_fire("0 6 * * *", "Europe/Berlin", dt.datetime.fromisoformat(at))
    assert found == dt.datetime.fromisoformat(fired)


@pytest.mark.parametrize(
    ("cron", "fired"),
    [
        ("* * 1 1 *", "2026-01-01T23:59:00+00:00"),  # more dates than Prefect gives at once
        ("0 6 29 2 *", "2024-02-29T06:00:00+00:00"),
        ("*/5 * * * *", "2026-11-13T07:00:00+00:00"),
    ],
)
def test_the_last_time_is_found_however_rare_or_frequent_they_are(cron, fired):
    at = dt.datetime.fromisoformat("2026-11-13T07:00:00+00:00")
    assert last_fire(cron, "UTC", at) == dt.datetime.fromisoformat(fired)


def test_a_cron_line_that_is_not_understood_is_named():
    with pytest.raises(ConfigError, match=r"schedule\.cron '0 6 \* \* 9' is not a cron line"):
        last_fire("0 6 * * 9", "UTC", dt.datetime.now(dt.UTC))


def test_a_running_span_is_not_missed_and_is_left_alone(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    asked(store, config, "2026-11-12")
    with held(store):
        report = seen(store, config)
    assert (report.missed, report.catch_up, told(report)) == ((), None, [])
    assert row(report, "2026-11-12").state == "Running"
    assert [clock.standing for clock in report.clocks] == ["on time"]


def test_a_run_whose_process_is_gone_is_lost_and_caught_up(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    asked(store, config, "2026-11-12")
    report = seen(store, config)
    assert row(report, "2026-11-12").state == "Lost"
    assert (report.missed, report.catch_up) == (("2026-11-12",), "2026-11-12")
    assert told(report) == [("lost", ("2026-11-12",))]
    assert problem(report, "lost").way_out.endswith("go on with: millrace run --span 2026-11-12")


def test_a_later_attempt_supersedes_the_one_that_was_lost(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    plan = asked(store, config, "2026-11-12")
    carry_out(plan)
    write_invocation(store, plan, number=2, ended_at="2026-11-13T06:30:00+00:00", state="Released")
    report = seen(store, config)
    assert (report.clocks, report.problems) == ((), ())


@pytest.mark.parametrize(
    ("failure", "catch_up"),
    [
        (FailureClass.DATA, None),
        (FailureClass.CANCELLED, None),
        (FailureClass.CAPACITY, "2026-11-13"),
        (FailureClass.STORE, "2026-11-13"),
    ],
)
def test_what_failed_for_good_is_for_people_and_holds_up_what_follows(store, runner, config, failure, catch_up):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12", "2026-11-13")
    state = "Cancelled" if failure is FailureClass.CANCELLED else "Failed"
    asked(
        store,
        config,
        "2026-11-12",
        ended_at="2026-11-13T05:10:00+00:00",
        state=state,
        failure=failure,
        message="row 3 is bad",
    )
    report = seen(store, config, "2026-11-14T07:00:00+01:00")
    assert report.missed == ("2026-11-12", "2026-11-13")
    assert report.catch_up == catch_up
    assert (row(report, "2026-11-12").state, row(report, "2026-11-12").failure) == (state, failure)
    assert problem(report, "missed").spans == ("2026-11-13",)
    begun = "The deployment watch/hourly" if catch_up else "The run over 2026-11-12 comes first"
    assert problem(report, "missed").way_out.startswith(begun)


def test_a_failure_says_why_and_how_to_go_on(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    ended = {"ended_at": "2026-11-13T05:10:00+00:00", "state": "Failed"}
    asked(store, config, "2026-11-12", **ended, failure=FailureClass.DATA, message="row 3 is bad")
    found = problem(seen(store, config), "failed")
    assert found.sentence == (
        "The run over 2026-11-12 failed with DATA (the input is not fit to train on): row 3 is bad"
    )
    assert found.way_out == ("Mend that, then: millrace run --span 2026-11-12, or Retry on http://ui/runs/flow-run/1")


def test_weekly_spans_follow_the_weekly_schedule(store, runner: FakeRunner):
    config = small_config("schedule.cron=0 6 * * 1")
    train(store, config, "2026-W45")
    ingest(store, "2026-W46", "2026-W47")
    assert seen(store, config, "2026-11-19T12:00:00+00:00").missed == ("2026-W46",)
    assert seen(store, config, "2026-11-23T06:14:00+00:00").missed == ("2026-W46",)
    assert seen(store, config, "2026-11-23T06:15:00+00:00").missed == ("2026-W46", "2026-W47")


def test_an_adopted_branch_is_what_counts(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    branches.begin(store, "main-backfill", "main", None)
    other = config.model_copy(update={"lineage": "main-backfill"})
    carry_out(plan_run(store, other, "2026-11-11"))
    branches.adopt(store, "main", "main-backfill", "main")
    report = seen(store, config)
    assert report.continues == "main-backfill"
    assert report.missed == ("2026-11-12",)


# --- what the lineage has gone past -------------------------------------------------------------------------------


def test_late_corrected_and_missing_spans_are_good_to_know(store, runner: FakeRunner, config):
    train(store, config, "2026-11-08")
    train(store, config, "2026-11-11", "2026-11-12")
    ingest(store, "2026-11-09")
    commit_files(store, "spans/2026-11-11/v2", {"p": "more"}, "span", rows=41)
    report = seen(store, config)
    assert told(report) == [
        ("hole", ("2026-11-10",)),
        ("too late", ("2026-11-09",)),
        ("corrected", ("2026-11-11",)),
    ]
    assert report.urgent == ()
    assert problem(report, "corrected").way_out.startswith("millrace backfill --from 2026-11-11 --to 2026-11-12")
    assert (row(report, "2026-11-11").version, row(report, "2026-11-11").trained_version) == (2, 1)


# --- deadlines ----------------------------------------------------------------------------------------------------


@pytest.fixture
def going(store, runner: FakeRunner, config) -> RunPlan:
    """Three days, of which the last is running; each stage takes 9.75 s, as the fake workers say."""
    train(store, config, "2026-11-10", "2026-11-11")
    ingest(store, "2026-11-12")
    return asked(store, config, "2026-11-12")


@pytest.mark.parametrize(
    ("at", "standing", "expected"),
    [
        ("2026-11-13T08:58:50+00:00", "on time", "2026-11-13T08:59:58+00:00"),  # seven stages take 68.25 s
        ("2026-11-13T08:58:53+00:00", "will be late", "2026-11-13T09:00:01+00:00"),
        ("2026-11-13T09:30:00+00:00", "late", "2026-11-13T09:31:08+00:00"),
    ],
)
def test_the_end_is_expected_from_what_is_left(store, config, going, at, standing, expected):
    with held(store):
        (clock,) = seen(store, config, at).clocks
    assert (clock.standing, clock.expected_end, clock.lost) == (standing, expected, False)


def test_a_stage_that_runs_has_less_left(store, config, going):
    spec = JobSpec(
        run_key=going.run_key,
        span=going.span,
        attempt=1,
        submitted_as=1,
        workspace=store.uri,
        workers=1,
        config=config,
        inputs=HealthInputs(),
    )
    record = ledger.begin(store, spec).model_copy(update={"started_at": "2026-11-13T08:00:00.000000+00:00"})
    store.write(f"{spec.attempt_prefix}/ledger.json", record.to_json())
    with held(store):
        (early,) = seen(store, config, "2026-11-13T08:00:05+00:00").clocks
        (overdue,) = seen(store, config, "2026-11-13T08:30:00+00:00").clocks
    assert early.expected_end == "2026-11-13T08:01:08+00:00"  # 68.25 s, of which 5 are over
    assert overdue.expected_end == "2026-11-13T08:30:58+00:00"  # six other stages


def test_without_a_record_of_such_runs_the_invocation_tells(store, runner: FakeRunner, config):
    ingest(store, "2026-11-12")
    asked(store, config, "2026-11-12", expected_seconds=7200.0)
    with held(store):
        (clock,) = seen(store, config, "2026-11-13T06:00:00+00:00").clocks
    assert clock.expected_end == "2026-11-13T07:00:05+00:00"


def test_a_late_run_says_so_with_its_deadline(store, config, going):
    with held(store):
        report = seen(store, config, "2026-11-13T09:30:00+00:00")
    assert problem(report, "late").sentence == (
        "The run over 2026-11-12 (attempt 1) is past its deadline of 2026-11-13 09:00 UTC; it should end at "
        "2026-11-13 09:31 UTC."
    )
    assert problem(report, "late").way_out == "See what it does: http://ui/runs/flow-run/1"


def test_a_lost_run_is_late_too_once_its_deadline_is_past(store, config, going):
    report = seen(store, config, "2026-11-13T09:30:00+00:00")
    assert [(clock.standing, clock.lost) for clock in report.clocks] == [("late", True)]
    assert "was lost: its process is gone" in problem(report, "late").sentence


@pytest.mark.parametrize(("at", "count"), [("2026-11-14T09:00:00+00:00", 1), ("2026-11-14T10:00:00+00:00", 0)])
def test_a_run_that_ended_late_is_told_of_for_a_day(store, config, going, at, count):
    carry_out(going)
    write_invocation(store, going, ended_at="2026-11-13T09:30:00+00:00", state="Released")
    clocks = seen(store, config, at).clocks
    assert [clock.standing for clock in clocks] == ["late"] * count


def attempt(store: DirectoryStore, plan: RunPlan, number: int, error: Exception, seconds: Phases) -> None:
    """A failed attempt of training that lost the time in `seconds`."""
    spec = JobSpec(
        run_key=plan.run_key,
        span=plan.span,
        attempt=number,
        submitted_as=number,
        workspace=store.uri,
        workers=1,
        config=plan.config,
        inputs=TrainInputs(rows=(), history=(), parent=None),
    )
    record = ledger.end(store, ledger.begin(store, spec), 0.0, error)
    changes = {"seconds": seconds, "started_at": f"2026-11-13T05:{number:02d}:10.000000+00:00"}
    store.write(f"{spec.attempt_prefix}/ledger.json", record.model_copy(update=changes).to_json())


def test_the_class_that_cost_most_is_blamed(store, config, going):
    attempt(store, going, 1, HostError("gone"), Phases(lost=600.0))
    attempt(store, going, 2, DataError("bad"), Phases(lost=90.0))
    attempt(store, going, 3, HostError("gone"), Phases(lost=600.0, queued=60.0))
    with held(store):
        (clock,) = seen(store, config, "2026-11-13T09:30:00+00:00").clocks
    assert clock.failure is FailureClass.HOST


def test_capacity_is_blamed_where_most_of_the_time_was_waited(store, config, going):
    attempt(store, going, 1, HostError("gone"), Phases(lost=600.0, queued=9000.0))
    with held(store):
        (clock,) = seen(store, config, "2026-11-13T09:30:00+00:00").clocks
    assert clock.failure is FailureClass.CAPACITY


def test_a_run_that_began_hours_after_its_time_waited_as_well(store, config, going):
    write_invocation(store, going, began_at="2026-11-13T08:30:00+00:00")
    with held(store):
        (clock,) = seen(store, config, "2026-11-13T09:30:00+00:00").clocks
    assert clock.failure is FailureClass.CAPACITY


# --- sturdiness ---------------------------------------------------------------------------------------------------


def test_a_damaged_record_leaves_a_blank_and_stops_nobody(store, runner: FakeRunner, config):
    train(store, config, "2026-11-12")
    key = plan_run(store, config, "2026-11-12").run_key
    store.write(f"runs/{key}/train/attempt-1/ledger.json", b"{}")
    store.write(f"runs/{key}/invocations/1.json", b"{}")
    report = seen(store, config)
    assert (row(report, "2026-11-12").trained_at, row(report, "2026-11-12").state) == (None, "Released")


def test_looking_writes_nothing(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    asked(store, config, "2026-11-12")
    before = {key: store.read(key) for key in store.list("") if not key.startswith(".locks/")}
    seen(store, config)
    assert {key: store.read(key) for key in store.list("") if not key.startswith(".locks/")} == before


def test_who_may_only_read_declares_nobody_dead(store, runner: FakeRunner, config, monkeypatch):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    asked(store, config, "2026-11-12")

    def refused(key: str):
        raise PermissionError(13, "Permission denied", key)

    monkeypatch.setattr(store, "lock", refused)
    assert row(seen(store, config), "2026-11-12").state == "Running"


def test_a_bucket_tells_the_same(s3, config, monkeypatch):
    bucket = open_store(s3.new_workspace())
    fake = FakeRunner(bucket)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: fake)
    ingest(bucket, "2026-11-11", "2026-11-12", "2026-11-13")
    carry_out(plan_run(bucket, config))
    asked(bucket, config, "2026-11-12")
    at = "2026-11-14T07:00:00+01:00"
    with bucket.lock("lineages/main.run"):
        states = [one.state for one in seen(bucket, config, at).spans]
    assert states == ["Released", "Running", "Missed"]
    report = seen(bucket, config, at)
    assert [one.state for one in report.spans] == ["Released", "Lost", "Missed"]
    assert report.missed == ("2026-11-12", "2026-11-13")


class Watched(DirectoryStore):
    """Remembers what was read and listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[str] = []

    def read(self, key: str) -> bytes:
        self.asked.append(key)
        return super().read(key)

    def list(self, prefix: str) -> list[str]:
        self.asked.append(f"{prefix}/")
        return super().list(prefix)


def test_spans_of_long_ago_are_not_read(store, runner: FakeRunner, config, monkeypatch):
    monkeypatch.setattr(span_progress, "ROWS", 2)
    for span in days("2026-11-09", "2026-11-12"):
        ingest(store, span)
        plan = plan_run(store, config)
        one = invocations.begin(store, plan)
        carry_out(plan)
        invocations.end(store, one, RunState.RELEASED)
    watched = Watched(store.root)
    seen(watched, config)
    assert sum(key.endswith("/ledger.json") for key in watched.asked) == 2 * 5
    assert sum("/invocations/" in key for key in watched.asked) == 2
    assert [key for key in watched.asked if key.startswith("runs/") and key.endswith("/")] == ["runs/"]
    assert not [key for key in watched.asked if "2026-11-10" in key or "step-00000010" in key]


def test_spans_in_a_row_are_named_together():
    groups = list(together(["2026-11-30", "2026-12-01", "2026-11-27"]))
    assert groups == [("2026-11-27",), ("2026-11-30", "2026-12-01")]
    assert [named(group) for group in groups] == ["2026-11-27", "2026-11-30 to 2026-12-01 (2 spans)"]


def test_invocations_made_by_the_flow_are_read(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    plan = plan_run(store, config)
    one = invocations.begin(store, plan, page="http://ui/1")
    carry_out(plan)
    invocations.end(store, one, RunState.RELEASED)
    assert row(seen(store, config), "2026-11-12").page == "http://ui/1"

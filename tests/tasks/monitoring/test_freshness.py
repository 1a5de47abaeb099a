"""The freshness of the vectors and its problems, with daily spans trained at six in Berlin."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import infra.compute.factory
from configs.schema.config import Config
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from infra.store.lease import Lease
from tasks.contracts.jobs import HealthInputs, Inputs, JobSpec, TrainInputs
from tasks.contracts.outcomes import Phases
from tasks.contracts.runs import RunPlan, RunState
from tasks.contracts.spans import after
from tasks.contracts.stages import Stage
from tasks.foundation.errors import ConfigError, DataError, FailureClass, HostError
from tasks.laboratory.weekly import decide
from tasks.monitoring import progress
from tasks.monitoring.deadlines import last_fire
from tasks.monitoring.freshness import FreshnessReport, freshness
from tasks.monitoring.problems import Problem, named, together
from tasks.monitoring.progress import ROWS, SpanRow
from tasks.planning.decisions import Action, overrule, skip
from tasks.planning.next_run import plan_run
from tasks.running.lineage_lock import confirm_lineages, hold_lineage
from tasks.runs import branches, invocations, ledger
from tasks.runs.plan import save_plan
from tasks.runs.rollback import hold
from tests.support.cloud.s3 import Fault, S3Server
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


def look(store: Store, config: Config, at: str = MORNING) -> FreshnessReport:
    return freshness(store, config, dt.datetime.fromisoformat(at))


def row(report: FreshnessReport, span: str) -> SpanRow:
    (found,) = [one for one in report.spans if one.span == span]
    return found


def problems_of(report: FreshnessReport) -> list[tuple[str, tuple[str, ...]]]:
    return [(problem.kind, problem.spans) for problem in report.problems]


def problem(report: FreshnessReport, kind: str) -> Problem:
    (found,) = [one for one in report.problems if one.kind == kind]
    return found


def recorded_run(store: Store, config: Config, span: str, **changes: Any) -> RunPlan:
    """A run of which only the record that it began is there."""
    plan = plan_run(store, config, span)
    save_plan(store, plan)
    write_invocation(store, plan, **changes)
    return plan


def locked(store: Store, lineage: str = "main"):
    """The lineage's lock, as a running process holds it."""
    return store.lock(f"lineages/{lineage}.run")


# --- rows and age -------------------------------------------------------------------------------------------------


def test_a_row_has_the_times_of_its_span_from_arrival_to_release(store, runner: FakeRunner, config):
    commit_files(
        store, "spans/2026-11-12/v1", {"p": "x"}, "span", rows=40, ingested_at="2026-11-13T03:12:00.000000+00:00"
    )
    plan = plan_run(store, config)
    carry_out(plan)
    report = look(store, config)
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
    assert (
        report.sentence
        == "Nothing is wrong: the released vectors hold 2026-11-12, 6 h old; all 30 items have a vector."
    )


def test_the_age_counts_from_the_end_of_the_newest_released_span(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    report = look(store, config)
    assert (report.release, report.newest, report.age_hours) == (2, "2026-11-12", 6.0)
    assert (report.newest_ended_at, report.stale_at) == ("2026-11-13T00:00:00+00:00", "2026-11-14T12:00:00+00:00")
    assert not report.stale


def test_vectors_are_stale_after_the_target_and_the_missing_span_is_named(store, runner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    assert not look(store, config, "2026-11-14T12:00:00+00:00").stale
    report = look(store, config, "2026-11-14T12:00:01+00:00")
    assert report.stale
    assert "because 2026-11-13 has not arrived" in problem(report, "stale").sentence
    assert problem(report, "stale").way_out.endswith("millrace ingest")


def test_a_rejected_span_is_no_problem_until_the_vectors_are_stale(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    train(store, config, "2026-11-12")
    report = look(store, config, "2026-11-13T07:00:00+00:00")
    assert row(report, "2026-11-12").state == "Rejected"
    assert (report.newest, report.problems) == ("2026-11-11", ())
    late = look(store, config, "2026-11-13T12:30:00+00:00")
    assert " because the model of 2026-11-12 was rejected; the target is " in problem(late, "stale").sentence
    assert problem(late, "stale").way_out == "The verdicts: millrace report --span 2026-11-12"


def test_a_run_that_trains_a_rejected_span_again_is_seen(store, runner: FakeRunner, config):
    train(store, config, "2026-11-10")
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    plan = recorded_run(store, config, "2026-11-12")  # on a branch that runs do not continue yet
    with locked(store):
        report = look(store, config)
    assert [row(report, span).state for span in ("2026-11-11", "2026-11-12")] == ["Rejected", "Running"]
    runner.metrics = {"recall@10": 0.5, "mrr@10": 0.3}
    carry_out(plan)
    report = look(store, config)
    assert (report.continues, report.missed) == (plan.config.lineage, ())
    for span in ("2026-11-11", "2026-11-12"):
        assert (row(report, span).state, row(report, span).run_key) == ("Released", plan.run_key)


def test_a_version_that_was_never_trained_is_not_released(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    ingest(store, "2026-11-12", version=2)
    one = row(look(store, config), "2026-11-12")
    assert (one.state, one.version, one.trained_version) == ("Corrected", 2, 1)
    late = look(store, config, "2026-11-14T12:00:01+00:00")
    assert problem(late, "corrected").spans == ("2026-11-12",)


def test_a_skipped_span_is_known_with_its_reason_and_not_missed(store, runner: FakeRunner, config):
    train(store, config, "2026-11-10")
    ingest(store, "2026-11-11", "2026-11-12")
    skip(store, config, "2026-11-11", "five rows")
    train(store, config, "2026-11-12")
    report = look(store, config)
    assert (row(report, "2026-11-11").state, row(report, "2026-11-11").message) == ("Skipped", "five rows")
    assert problems_of(report) == [("skipped", ("2026-11-11",))]
    assert problem(report, "skipped").sentence == "2026-11-11 v1 is skipped: five rows"


def test_a_span_that_waits_by_a_decision_is_known_and_not_missed(store, runner: FakeRunner, config):
    train(store, config, "2026-11-10")
    ingest(store, "2026-11-11")
    deciding = config.model_copy(update={"decide": config.decide.model_copy(update={"scheduled": True})})
    overrule(store, decide(store, deciding), Action.skip, "nothing new")
    report = look(store, deciding)
    assert (row(report, "2026-11-11").state, report.missed, report.catch_up) == ("Postponed", (), None)
    assert "nothing new" in problem(report, "postponed").sentence
    assert row(look(store, config), "2026-11-11").state == "Missed"


def test_a_workspace_without_spans_or_without_a_release_is_a_problem(store, runner: FakeRunner, config):
    empty = look(store, config)
    assert (empty.due, empty.spans, problems_of(empty)) == (None, (), [("not arrived", ())])
    ingest(store, "2026-11-11", "2026-11-12")
    begun = look(store, config)
    assert problems_of(begun) == [("unreleased", ())]
    assert [one.state for one in begun.spans] == ["Arrived", "Arrived"]


def test_only_the_newest_spans_have_rows(store, config):
    spans = days("2026-08-01", "2026-11-12")
    ingest(store, *spans)
    report = look(store, config)
    assert [one.span for one in report.spans] == spans[-ROWS:]
    assert report.older == len(spans) - ROWS


# --- missed spans -------------------------------------------------------------------------------------------------


WEEK = days("2026-11-13", "2026-11-19")


@pytest.mark.parametrize("arrived", [WEEK, [], ["2026-11-14", "2026-11-15", "2026-11-18"]], ids=["all", "none", "some"])
def test_after_a_week_without_runs_arrived_spans_are_missed_and_the_others_are_gaps(store, runner, config, arrived):
    train(store, config, "2026-11-12")
    ingest(store, *arrived, "2026-11-20")  # the last arrived before its time
    report = look(store, config, "2026-11-20T07:00:00+01:00")
    absent = [span for span in WEEK if span not in arrived]
    assert (report.missed, report.gaps) == (tuple(arrived), tuple(absent))
    assert report.catch_up == (arrived[-1] if arrived else None)
    assert {row(report, span).state for span in arrived} <= {"Missed"}
    assert row(report, "2026-11-20").state == "Arrived"
    for kind, spans in (("missed", report.missed), ("not arrived", report.gaps)):
        assert sum((one.spans for one in report.problems if one.kind == kind), ()) == spans


@pytest.mark.parametrize("wrong", ["3000-01-01", "1600-01-01"])
def test_a_span_of_a_wrong_date_is_no_reason_to_list_thousands(store, runner, config, wrong):
    train(store, config, "2026-11-12")
    ingest(store, "2026-11-14", wrong)
    report = look(store, config, "2026-11-15T07:00:00+01:00")
    assert report.gaps == ("2026-11-13",)
    assert len(report.spans) + report.older == 4


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
    assert look(store, config, at).missed == missed


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
    with pytest.raises(ConfigError, match=r"schedule\.cron '0 6 \* \* 9' is not a cron line"):
        last_fire("0 6 * * 9", "UTC", dt.datetime.now(dt.UTC))


def test_a_running_span_is_not_missed(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    recorded_run(store, config, "2026-11-12")
    with locked(store):
        report = look(store, config)
    assert (report.missed, report.catch_up, problems_of(report)) == ((), None, [])
    assert (row(report, "2026-11-12").state, row(report, "2026-11-12").page) == ("Running", "http://ui/runs/flow-run/1")
    assert [clock.standing for clock in report.clocks] == ["on time"]


def test_a_run_whose_process_is_gone_is_lost_and_caught_up(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    recorded_run(store, config, "2026-11-12")
    report = look(store, config)
    assert row(report, "2026-11-12").state == "Lost"
    assert (report.missed, report.catch_up) == (("2026-11-12",), "2026-11-12")
    assert problems_of(report) == [("lost", ("2026-11-12",))]
    assert problem(report, "lost").way_out == (
        "The deployed watch starts it again, at most three times a day, and its stages that are done stay so; "
        "sooner: millrace run --span 2026-11-12"
    )


def test_a_later_attempt_replaces_a_lost_one(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    plan = recorded_run(store, config, "2026-11-12")
    carry_out(plan)
    write_invocation(store, plan, number=2, ended_at="2026-11-13T06:30:00+00:00", state="Released")
    report = look(store, config)
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
def test_a_permanent_failure_blocks_the_spans_after_it_and_says_why(store, runner, config, failure, catch_up):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12", "2026-11-13")
    state = "Cancelled" if failure is FailureClass.CANCELLED else "Failed"
    ended = {"ended_at": "2026-11-13T05:10:00+00:00", "state": state, "failure": failure, "message": "row 3 is bad"}
    recorded_run(store, config, "2026-11-12", **ended)
    report = look(store, config, "2026-11-14T07:00:00+01:00")
    assert report.missed == ("2026-11-12", "2026-11-13")
    assert report.catch_up == catch_up
    assert (row(report, "2026-11-12").state, row(report, "2026-11-12").failure) == (state, failure)
    assert problem(report, "missed").spans == ("2026-11-13",)
    way_out = "The deployed watch" if catch_up else "The run over 2026-11-12 comes first"
    assert problem(report, "missed").way_out.startswith(way_out)
    if state == "Failed":
        assert str(failure) in problem(report, "failed").sentence
        assert "row 3 is bad" in problem(report, "failed").sentence
        assert "millrace run --span 2026-11-12" in problem(report, "failed").way_out


def test_a_run_whose_release_a_person_holds_is_not_started_again(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    hold(store, "the audit")
    ingest(store, "2026-11-12")
    plan = plan_run(store, config, "2026-11-12")
    carry_out(plan)
    write_invocation(store, plan)
    report = look(store, config)
    assert (row(report, "2026-11-12").state, report.catch_up) == ("Held", None)


def test_weekly_spans_follow_the_weekly_schedule(store, runner: FakeRunner):
    config = small_config("schedule.cron=0 6 * * 1")
    train(store, config, "2026-W45")
    ingest(store, "2026-W46", "2026-W47")
    assert look(store, config, "2026-11-19T12:00:00+00:00").missed == ("2026-W46",)
    assert look(store, config, "2026-11-23T06:14:00+00:00").missed == ("2026-W46",)
    assert look(store, config, "2026-11-23T06:15:00+00:00").missed == ("2026-W46", "2026-W47")


def test_an_adopted_branch_decides_what_was_missed(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11", "2026-11-12")
    branches.begin(store, "main-backfill", "main", None)
    other = config.model_copy(update={"lineage": "main-backfill"})
    carry_out(plan_run(store, other, "2026-11-11"))
    branches.adopt(store, "main", "main-backfill", "main")
    report = look(store, config)
    assert report.continues == "main-backfill"
    assert report.missed == ("2026-11-12",)


# --- what the lineage has gone past -------------------------------------------------------------------------------


def test_late_corrected_and_missing_spans_are_reported_as_not_urgent(store, runner: FakeRunner, config):
    train(store, config, "2026-11-08")
    train(store, config, "2026-11-11", "2026-11-12")
    ingest(store, "2026-11-09")
    commit_files(store, "spans/2026-11-11/v2", {"p": "more"}, "span", rows=41)
    report = look(store, config)
    assert problems_of(report) == [
        ("hole", ("2026-11-10",)),
        ("too late", ("2026-11-09",)),
        ("corrected", ("2026-11-11",)),
    ]
    assert report.urgent == ()
    assert problem(report, "corrected").way_out.startswith("millrace backfill --from 2026-11-11 --to 2026-11-12")
    assert (row(report, "2026-11-11").version, row(report, "2026-11-11").trained_version) == (2, 1)


# --- deadlines ----------------------------------------------------------------------------------------------------


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
def test_the_expected_end_follows_from_the_stages_left(store, config, running, at, standing, expected):
    with locked(store):
        report = look(store, config, at)
    (clock,) = report.clocks
    assert (clock.standing, clock.expected_end, clock.lost) == (standing, expected, False)
    if standing == "late":
        late = problem(report, "late")
        assert "deadline of 2026-11-13 09:00 UTC; it should end at 2026-11-13 09:31" in late.sentence
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
    record = ledger.begin(store, spec).model_copy(update={"started_at": "2026-11-13T08:00:00.000000+00:00"})
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
    assert "was lost: its process is gone" in problem(report, "late").sentence


@pytest.mark.parametrize(("at", "count"), [("2026-11-14T09:00:00+00:00", 1), ("2026-11-14T10:00:00+00:00", 0)])
def test_a_run_that_ended_late_is_shown_for_a_day(store, config, running, at, count):
    carry_out(running)
    write_invocation(store, running, ended_at="2026-11-13T09:30:00+00:00", state="Released")
    clocks = look(store, config, at).clocks
    assert [clock.standing for clock in clocks] == ["late"] * count


def attempt(store: DirectoryStore, plan: RunPlan, number: int, error: Exception, seconds: Phases) -> None:
    """A failed attempt of training that lost the time in `seconds`."""
    spec = spec_of(store, plan, number, TrainInputs(rows=(), history=(), parent=None))
    record = ledger.end(store, ledger.begin(store, spec), 0.0, error)
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


# --- sturdiness ---------------------------------------------------------------------------------------------------


def test_a_damaged_record_leaves_a_blank_in_its_row(store, runner: FakeRunner, config):
    train(store, config, "2026-11-12")
    key = plan_run(store, config, "2026-11-12").run_key
    store.write(f"runs/{key}/train/attempt-1/ledger.json", b"{}")
    store.write(f"runs/{key}/invocations/1.json", b"{}")
    report = look(store, config)
    assert (row(report, "2026-11-12").trained_at, row(report, "2026-11-12").state) == (None, "Released")


def test_looking_writes_nothing(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    recorded_run(store, config, "2026-11-12")
    before = {key: store.read(key) for key in store.list("") if not key.startswith(".locks/")}
    look(store, config)
    assert {key: store.read(key) for key in store.list("") if not key.startswith(".locks/")} == before


def test_a_reader_without_write_access_sees_what_runs(store, runner: FakeRunner, config, monkeypatch):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    recorded_run(store, config, "2026-11-12")

    def refused(*arguments: object):
        raise PermissionError(13, "Permission denied", *arguments)

    reader = DirectoryStore(store.root)
    for method in ("write", "create", "swap", "upload", "move", "delete", "lock"):
        monkeypatch.setattr(reader, method, refused)
    with locked(store):
        assert row(look(reader, config), "2026-11-12").state == "Running"
    assert row(look(reader, config), "2026-11-12").state == "Lost"
    monkeypatch.setattr(reader, "peek", refused)
    assert row(look(reader, config), "2026-11-12").state == "Running"  # none is lost without proof


def test_looking_at_a_run_whose_lease_expired_leaves_it_the_lineage(s3: S3Server, config):
    """In a bucket, with credentials that may only read."""
    bucket = open_store(s3.new_workspace())
    ingest(bucket, "2026-11-12")
    recorded_run(bucket, config, "2026-11-12")
    key = ".locks/lineages/main.run"
    with hold_lineage(bucket, "lineages/main.run", print):
        lease = Lease.model_validate_json(bucket.read(key))
        assert row(look(bucket, config), "2026-11-12").state == "Running"
        bucket.write(key, lease.model_copy(update={"until": 0.0}).to_json())  # the machine stood still for that long
        s3.faults = [Fault(method, 403, "AccessDenied") for method in ("PUT", "POST", "DELETE")]
        assert row(look(bucket, config), "2026-11-12").state == "Lost"
        assert len(s3.faults) == 3
        s3.faults.clear()
        confirm_lineages()
    assert bucket.peek("lineages/main.run") is None


def test_a_bucket_gives_the_same_states(s3, config, monkeypatch):
    bucket = open_store(s3.new_workspace())
    fake = FakeRunner(bucket)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: fake)
    ingest(bucket, "2026-11-11", "2026-11-12", "2026-11-13")
    carry_out(plan_run(bucket, config))
    recorded_run(bucket, config, "2026-11-12")
    at = "2026-11-14T07:00:00+01:00"
    with bucket.lock("lineages/main.run"):
        states = [one.state for one in look(bucket, config, at).spans]
    assert states == ["Released", "Running", "Missed"]
    report = look(bucket, config, at)
    assert [one.state for one in report.spans] == ["Released", "Lost", "Missed"]
    assert report.missed == ("2026-11-12", "2026-11-13")


class Watched(DirectoryStore):
    """Remembers what was read and listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.keys: list[str] = []

    def read(self, key: str) -> bytes:
        self.keys.append(key)
        return super().read(key)

    def list(self, prefix: str) -> list[str]:
        self.keys.append(f"{prefix}/")
        return super().list(prefix)

    def sizes(self, prefix: str) -> dict[str, int]:
        self.keys.append(f"{prefix}/")
        return super().sizes(prefix)


def test_a_span_with_far_fewer_rows_than_usual_is_named_until_the_next_one_comes(store, runner: FakeRunner, config):
    train(store, config, "2026-11-10", "2026-11-11")
    commit_files(store, "spans/2026-11-12/v1", {"p": "x"}, "span", rows=9)
    found = problem(look(store, config), "few rows")
    assert (found.spans, found.urgent) == (("2026-11-12",), False)
    assert "9 rows, 22.5% of the usual 40" in found.sentence
    carry_out(plan_run(store, config))
    ingest(store, "2026-11-13")
    assert "few rows" not in {each.kind for each in look(store, config).problems}


def test_spans_of_long_ago_are_not_read(store, runner: FakeRunner, config, monkeypatch):
    monkeypatch.setattr(progress, "ROWS", 2)
    for span in days("2026-11-09", "2026-11-12"):
        ingest(store, span)
        plan = plan_run(store, config)
        one = invocations.begin(store, plan)
        carry_out(plan)
        invocations.end(store, one, RunState.RELEASED)
    watched = Watched(store.root)
    look(watched, config)
    assert sum(key.endswith("/ledger.json") for key in watched.keys) == 2 * 5
    assert sum("/invocations/" in key for key in watched.keys) == 2
    assert [key for key in watched.keys if key.startswith("runs/") and key.endswith("/")] == ["runs/"]
    assert not [key for key in watched.keys if "2026-11-10" in key or "step-00000010" in key]


def test_spans_in_a_row_are_named_together():
    groups = list(together(["2026-11-30", "2026-12-01", "2026-11-27"]))
    assert [named(group) for group in groups] == ["2026-11-27", "2026-11-30 to 2026-12-01 (2 spans)"]

"""Spans that no run took in time: missed, lost, failed or held; and the one that a run is to take."""

import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import FailureClass
from tasks.planning.next_run import plan_run
from tasks.runs import branches
from tasks.runs.holds import hold
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.workspace.invocations import write_invocation
from tests.tasks.monitoring.looks import days, locked, look, problem, problems_of, recorded_run, row, train


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


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


def test_a_running_span_is_not_missed(store, runner: FakeRunner, config):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    recorded_run(store, config, "2026-11-12")
    with locked(store):
        report = look(store, config)
    assert (report.missed, report.catch_up, problems_of(report)) == ((), None, [])
    assert (row(report, "2026-11-12").state, row(report, "2026-11-12").page) == ("Running", "http://ui/runs/flow-run/1")
    assert [clock.standing for clock in report.clocks] == ["on time"]


def test_a_run_whose_process_is_gone_is_lost_and_caught_up(store, runner: FakeRunner, config, golden):
    train(store, config, "2026-11-11")
    ingest(store, "2026-11-12")
    recorded_run(store, config, "2026-11-12")
    report = look(store, config)
    assert row(report, "2026-11-12").state == "Lost"
    assert (report.missed, report.catch_up) == (("2026-11-12",), "2026-11-12")
    assert problems_of(report) == [("lost", ("2026-11-12",))]
    golden(problem(report, "lost").way_out)


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

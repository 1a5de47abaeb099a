"""Records of the invocations of a run: when each began and how it ended."""

import datetime as dt

import pytest

from tasks.contracts.runs import RunPlan, RunState
from tasks.foundation.errors import FailureClass
from tasks.planning.next_run import plan_run
from tasks.runs import invocations
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot
from tests.support.fakes.fake_runner import small_config


@pytest.fixture
def plan(store) -> RunPlan:
    return plan_run(store, small_config("freshness.deadline_hours=6"), "2021-Q1")


def test_invocations_are_numbered_and_kept(store, plan):
    first = invocations.begin(store, plan, flow_run="a")
    invocations.end(store, first, RunState.FAILED, FailureClass.STORE, "no space left")
    second = invocations.begin(store, plan, flow_run="b")
    invocations.end(store, second, RunState.RELEASED)
    kept = Run(Snapshot(store), plan.run_key).invocations
    found = [(one.number, one.flow_run, one.state, one.failure, one.message) for one in kept]
    assert found == [(1, "a", "Failed", FailureClass.STORE, "no space left"), (2, "b", "Released", None, "")]


def test_an_invocation_without_an_end_is_running(store, plan):
    invocations.begin(store, plan)
    (one,) = Run(Snapshot(store), plan.run_key).invocations
    assert (one.state, one.ended_at) == ("Running", None)


@pytest.mark.parametrize("scheduled", [None, "2026-11-16T06:00:00+00:00"])
def test_the_deadline_counts_from_the_scheduled_time_if_there_is_one(store, plan, scheduled):
    one = invocations.begin(store, plan, scheduled_at=scheduled)
    counted_from = dt.datetime.fromisoformat(scheduled or one.began_at)
    left = dt.datetime.fromisoformat(one.deadline) - counted_from
    assert left.total_seconds() == pytest.approx(6 * 3600, abs=1)

"""The runs that a watch starts, starts again or finds lost, under a real Prefect server."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from prefect import Task, flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Failed, Running

from flows.orchestration.catch_up import LOST
from flows.orchestration.watch_findings import GIVEN_UP
from flows.pipeline import pipeline
from infra.store.directory import DirectoryStore
from tasks.campaigns import stored
from tasks.campaigns.planner import plan_backfill
from tasks.contracts.runs import RunPlan
from tasks.contracts.spans import after
from tasks.foundation.errors import FailureClass
from tasks.planning.next_run import plan_run
from tasks.runs.plan import save_plan
from tests.flows.watch.watching import PROMISED, SETTINGS, look, running, set_clock
from tests.support.fakes.fake_runner import ingest, small_config
from tests.support.workspace.invocations import write_invocation


def started(store: DirectoryStore) -> list[FlowRun]:
    """The runs of the deployed pipeline over this workspace."""
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs()
    return [run for run in runs if run.deployment_id and run.parameters.get("workspace") == store.uri]


def week() -> list[str]:
    names = ["2026-11-13"]
    while len(names) < 7:
        names.append(after(names[-1]))
    return names


# --- catching up --------------------------------------------------------------------------------------------------


def test_a_week_of_downtime_is_caught_up_by_one_run(store, deployed):
    ingest(store, *week())
    look(store)
    look(store)
    state, report = look(store)
    assert report.missed == tuple(week())
    (run,) = started(store)
    assert run.parameters["span"] == "2026-11-19"
    assert run.parameters["scheduled_in"] == "Europe/Berlin"
    assert run.parameters["overrides"] == [*SETTINGS, *PROMISED]
    assert run.idempotency_key == f"missed:{store.uri}:main:2026-11-19:v1:i1"
    assert run.parent_task_run_id is None
    assert {"catch-up", "lineage:main"} <= set(run.tags)
    assert (state.name, state.is_completed()) == ("Attention", True)
    assert "(7 spans)" in str(state.message)
    assert "takes 2026-11-19" in str(state.message)


def test_a_week_that_never_arrived_starts_nothing(store, deployed):
    _, report = look(store)
    assert (report.missed, report.gaps) == ((), tuple(week()))
    assert started(store) == []


def test_the_started_run_trains_all_missed_spans(store, deployed, monkeypatch):
    ingest(store, "2026-11-13", "2026-11-14")
    set_clock(monkeypatch, "2026-11-15T07:00:00+01:00")
    look(store)
    (run,) = started(store)
    pipeline(**{**run.parameters, "overrides": tuple(run.parameters["overrides"])})
    state, report = look(store)
    assert (report.missed, report.newest) == ((), "2026-11-14")
    assert (state.name, len(started(store))) == ("Completed", 1)


def test_a_span_that_arrives_later_has_its_own_run(store, deployed, monkeypatch):
    ingest(store, *week())
    look(store)
    ingest(store, "2026-11-20")
    set_clock(monkeypatch, "2026-11-21T07:00:00+01:00")
    look(store)
    assert {run.idempotency_key for run in started(store)} == {
        f"missed:{store.uri}:main:2026-11-19:v1:i1",
        f"missed:{store.uri}:main:2026-11-20:v1:i1",
    }


def test_without_catch_up_nothing_is_started(store, deployed):
    ingest(store, *week())
    state, _ = look(store, catch_up=False)
    assert (state.name, started(store)) == ("Attention", [])


def test_without_a_deployment_the_message_names_the_command(store):
    ingest(store, *week())
    state, _ = look(store)
    assert "millrace run --span 2026-11-13" in str(state.message)


# --- starting again -----------------------------------------------------------------------------------------------


def hours_from_now(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    """Prefect's states have the real time, so the watch's clock counts from it."""
    set_clock(monkeypatch, (dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours)).isoformat())


def recent_span() -> str:
    """A span that is due whatever the time of day."""
    return str(dt.datetime.now(dt.UTC).date() - dt.timedelta(days=2))


def keys(store: DirectoryStore) -> list[str]:
    return sorted(str(run.idempotency_key).rpartition(":")[2] for run in started(store))


def set_state(run: FlowRun, state: Any) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, state, force=True)


def broken_off(store: DirectoryStore, span: str, failure: FailureClass | None, number: int = 1) -> RunPlan:
    """A run over `span` that ended with a failure; None: its process was killed."""
    plan = plan_run(store, small_config(*SETTINGS, *PROMISED), span)
    save_plan(store, plan)
    ended = {"ended_at": "2026-11-20T05:10:00+00:00", "state": "Failed", "failure": failure, "message": "away"}
    write_invocation(store, plan, number=number, **(ended if failure else {}))
    return plan


def test_runs_that_fail_are_started_again_after_pauses_and_given_up_once(store, deployed, prefect, monkeypatch):
    span = recent_span()
    ingest(store, span)
    for hours, expected in [(0, 1), (0.9, 1), (1.1, 2), (3.9, 2), (4.1, 3), (23.8, 3), (23.9, 3)]:
        hours_from_now(monkeypatch, hours)
        state, _ = look(store)
        assert keys(store) == [f"i{number}" for number in range(1, expected + 1)], hours
        for run in started(store):  # each ended before it left a record in the workspace
            if run.state is None or not run.state.is_final():
                set_state(run, Failed(message="no planning today"))
    assert "3 times" in str(state.message)
    (event,) = prefect.events(GIVEN_UP, f"millrace.span.main.{span}")
    assert f"millrace report --span {span}" in event["payload"]["sentence"]
    hours_from_now(monkeypatch, 24.1)
    look(store)
    assert keys(store) == ["i1", "i2", "i3", "i4"], "the next day it is tried again"


def test_a_run_that_waits_for_a_worker_is_not_started_twice(store, deployed, monkeypatch):
    ingest(store, recent_span())
    for hours in (0, 5, 30):
        hours_from_now(monkeypatch, hours)
        look(store)
    assert keys(store) == ["i1"]


def test_a_start_whose_process_died_at_once_does_not_block_the_next(store, deployed, monkeypatch):
    monkeypatch.setattr("flows.orchestration.catch_up.GAP_SECONDS", 2.5)
    ingest(store, recent_span())
    hours_from_now(monkeypatch, 0)
    look(store)
    set_state(started(store)[0], Running())
    hours_from_now(monkeypatch, 2)
    look(store)
    assert keys(store) == ["i1"], "it may still come"
    monkeypatch.setattr("flows.orchestration.catch_up.SILENT", dt.timedelta(0))
    answers = iter([False, True])  # it was between two spans
    with monkeypatch.context() as busy:
        busy.setattr("flows.orchestration.catch_up.is_held", lambda store, lineage: next(answers))
        look(store)
    assert keys(store) == ["i1"]
    look(store)
    assert keys(store) == ["i1", "i2"]
    assert {run.state_name for run in started(store)} == {"Crashed", "Scheduled"}


def test_a_cancelled_start_waits_for_a_person(store, deployed, monkeypatch):
    ingest(store, recent_span())
    hours_from_now(monkeypatch, 0)
    look(store)
    set_state(started(store)[0], Cancelled())
    hours_from_now(monkeypatch, 6)
    state, _ = look(store)
    assert keys(store) == ["i1"]
    assert "millrace run" in str(state.message)


@pytest.mark.parametrize("failure", [None, FailureClass.HOST, FailureClass.DISK])
def test_a_run_that_breaks_off_after_its_training_is_started_again(store, deployed, monkeypatch, failure):
    broken_off(store, "2026-11-12", failure)
    for release in store.list("releases"):
        store.delete(release)
    look(store)
    (run,) = started(store)
    assert run.parameters["span"] == "2026-11-12"
    assert run.idempotency_key == f"missed:{store.uri}:main:2026-11-12:v1:i2"


@pytest.mark.parametrize("failure", [FailureClass.DATA, FailureClass.CONFIG, FailureClass.CANCELLED])
def test_a_run_that_needs_a_person_is_not_started_again(store, deployed, failure):
    broken_off(store, "2026-11-12", failure)
    for release in store.list("releases"):
        store.delete(release)
    look(store)
    assert started(store) == []


# --- lost ---------------------------------------------------------------------------------------------------------


@flow
def killed() -> None:
    """Stands for flows whose process was killed."""


def shown_running(name: str, parent: FlowRun | None = None) -> FlowRun:
    """A flow run as a killed process leaves it."""
    with get_client(sync_client=True) as client:
        if parent is None:
            return client.create_flow_run(killed, name=name, state=Running())
        between = client.create_task_run(Task(killed.fn, name="between"), parent.id, name)
        return client.create_flow_run(killed, name=name, state=Running(), parent_task_run_id=between.id)


def states(*runs: FlowRun) -> list[str]:
    with get_client(sync_client=True) as client:
        return [str(client.read_flow_run(run.id).state_name) for run in runs]


def killed_backfill(store: DirectoryStore) -> tuple[FlowRun, FlowRun, FlowRun]:
    """One over three spans, with its own flow run, that of the span it was at, and that of one which was done."""
    config = small_config(*SETTINGS, *PROMISED)
    plan = plan_backfill(store, config, "2026-11-12", "2026-11-12", reason="again", stages=("train",))
    whole = shown_running("backfill")
    span = shown_running("a span", whole)
    state = stored.begin(store, plan, str(whole.id), "")
    steps = {"train": "running", "flow_run": str(span.id)}
    stored.save(store, state.model_copy(update={"spans": (state.spans[0].model_copy(update=steps),)}))
    return whole, span, shown_running("another")


def test_a_lost_run_and_its_parents_are_set_to_crashed(store, monkeypatch):
    monkeypatch.setattr("flows.orchestration.catch_up.START_MINUTES", 0.0)
    parent = shown_running("scheduled")
    child = shown_running("missed before", parent)
    running(store, flow_run=str(child.id))
    whole, span, another = killed_backfill(store)
    look(store)
    assert states(parent, child, whole, span, another) == ["Crashed", "Crashed", "Crashed", "Crashed", "Running"]
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(child.id).state
    assert state is not None
    assert state.message == LOST


def test_a_run_with_a_lock_or_just_started_still_shows_running(store, monkeypatch):
    run = shown_running("2026-11-19 attempt 1")
    running(store, flow_run=str(run.id))
    whole, span, _ = killed_backfill(store)
    look(store)
    assert states(run, whole, span) == ["Running", "Running", "Running"]
    monkeypatch.setattr("flows.orchestration.catch_up.START_MINUTES", 0.0)
    (backfill,) = stored.read_all(store)
    with store.lock("lineages/main.run"), store.lock(f"lineages/{backfill.branch}.run"):
        look(store)
    assert states(run, whole, span) == ["Running", "Running", "Running"]


def test_a_flow_run_of_another_server_is_ignored(store, monkeypatch):
    monkeypatch.setattr("flows.orchestration.catch_up.START_MINUTES", 0.0)
    running(store, flow_run="8d1c22f0-98c2-4a55-a10b-1d4a3b3ad8f5")
    _, report = look(store)
    assert [clock.lost for clock in report.clocks] == [True]

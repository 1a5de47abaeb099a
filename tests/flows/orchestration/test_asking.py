"""An undecided gate that asks a person, on a real Prefect server, answered as the form of the UI does."""

from __future__ import annotations

import contextlib
import contextvars
import datetime as dt
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow

import flows.watch
import infra.compute.factory
from flows.orchestration import asking
from flows.pipeline import pipeline
from infra.store.directory import DirectoryStore
from tasks.contracts.kinds import lineage_lock
from tasks.contracts.runs import RunState
from tasks.contracts.workspace import REPORT
from tasks.foundation.errors import ConfigError
from tasks.judging.judge_again import let_pass, plan_again
from tasks.runs import answers, releases
from tasks.runs.results import Judgement, read_judgement
from tasks.runs.run import Run, read_runs
from tasks.runs.snapshot import Snapshot
from tests.support.fakes.fake_runner import FakeRunner
from tests.support.processes.prefect_server import PrefectServer, credentials

SECONDS = 60.0
PLAIN = ("model.scratch.layers=1",)
GATE = (
    "{metric: recall@10, direction: higher, baseline: none, threshold: 0.0, min_rows: 1000000, undecided: ask, "
    "severity: critical}"
)
ASKS = (*PLAIN, f"evaluate.gates=[{GATE}]")
BY_ANN = {"name": "Ann", "reason": "the rows look right"}


@pytest.fixture
def runner(store: DirectoryStore, short_delays: None, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    monkeypatch.setattr("flows.orchestration.recorded_invocation.make_stage_page", lambda *_: None)
    monkeypatch.setattr(asking, "POLL_SECONDS", 0.2)
    return runner


@pytest.fixture
def deployment(store: DirectoryStore, runner: FakeRunner) -> Iterator[UUID]:
    made: Any = pipeline.to_deployment(
        name="shop-pipeline", parameters={"workspace": store.uri, "overrides": list(ASKS)}
    )
    identity = made.apply()
    yield identity
    with get_client(sync_client=True) as client:
        client.delete_deployment(identity)


def begin(deployment: UUID) -> FlowRun:
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(deployment)
    return go_on(run)


def go_on(run: FlowRun) -> FlowRun:
    """Run it in this process as a worker would, until it ends or is suspended."""
    with get_client(sync_client=True) as client, contextlib.suppress(Pause):
        run_flow(pipeline, flow_run=client.read_flow_run(run.id), parameters=run.parameters, return_type="state")
    return known(run)


def known(run: FlowRun) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(run.id)


def answer(prefect: PrefectServer, run: FlowRun, **given: str) -> str:
    """Answer as the UI's form does; the status of the response, or the server's error."""
    response = httpx.post(
        f"{prefect.url}/flow_runs/{run.id}/resume", json={"run_input": given}, auth=credentials(prefect.server)
    )
    return str(response.json().get("status", response.text))


def judged(store: DirectoryStore) -> Judgement:
    found = read_judgement(store, last(store).run_key)
    assert found is not None
    return found


def last(store: DirectoryStore) -> Run:
    return read_runs(Snapshot(store), ())[-1]


def test_an_accepted_model_is_released_after_a_suspension_without_a_process_or_a_lock(
    prefect: PrefectServer, store: DirectoryStore, runner: FakeRunner, deployment: UUID
) -> None:
    run = begin(deployment)
    assert (run.state_name, last(store).state) == ("Suspended", RunState.UNFINISHED)
    assert store.peek(lineage_lock("main")) is None
    assert releases.current(store) is None
    assert prefect.events("millrace.gate.asks", f"millrace.run.{last(store).run_key}")
    done = list(runner.stages)

    assert answer(prefect, run, answer="perhaps", **BY_ANN) == "REJECT"
    assert answer(prefect, run, answer="accept", name="", reason="no name") == "REJECT"
    assert answer(prefect, run, answer="accept", **BY_ANN) == "ACCEPT"
    ended = go_on(run)
    assert (ended.state_name, ended.id) == ("Released", run.id)
    decision = judged(store).decision
    assert decision is not None
    assert (decision.answer, decision.name, decision.reason) == ("accept", *BY_ANN.values())
    assert "recall@10" in decision.about[0]
    assert runner.stages[: len(done)] == done
    assert len(set(runner.stages)) == len(runner.stages), "no stage ran twice"
    assert b"Ann accepted it" in store.read(REPORT.key(run=last(store).run_key))
    assert [one.state for one in last(store).invocations] == [RunState.UNFINISHED, RunState.RELEASED]


def test_a_rejected_model_is_not_released_and_its_run_says_who_rejected_it(
    prefect: PrefectServer, store: DirectoryStore, deployment: UUID
) -> None:
    run = begin(deployment)
    assert answer(prefect, run, answer="reject", **BY_ANN) == "ACCEPT"
    ended = go_on(run)
    assert ended.state is not None
    assert (ended.state_name, "Ann rejected" in str(ended.state.message)) == ("Rejected", True)
    assert (last(store).state, releases.numbers(store)) == (RunState.REJECTED, [])


def test_a_held_model_becomes_a_release_that_waits(
    prefect: PrefectServer, store: DirectoryStore, deployment: UUID
) -> None:
    pipeline(store.uri, "2021-Q1", overrides=PLAIN)
    run = begin(deployment)
    assert answer(prefect, run, answer="hold", **BY_ANN) == "ACCEPT"
    assert go_on(run).state_name == "Held"
    hold, serving = releases.hold_of(store), releases.current(store)
    assert hold is not None
    assert serving is not None
    assert ("Ann: the rows look right" in hold.sentence, serving.number, releases.numbers(store)) == (True, 1, [1, 2])


def test_without_an_answer_in_time_the_watch_lets_the_run_reject_its_model(
    prefect: PrefectServer, store: DirectoryStore, deployment: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(deployment)
    flows.watch.watch(store.uri, overrides=ASKS, catch_up=False)
    assert known(run).state_name == "Suspended"
    later = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=73)).isoformat()
    monkeypatch.setattr(answers, "now", lambda: later)
    flows.watch.watch(store.uri, overrides=ASKS, catch_up=False)
    assert known(run).state_name in ("Scheduled", "Late", "Resuming")
    assert go_on(run).state_name == "Rejected"
    decision = judged(store).decision
    assert decision is not None
    assert (decision.answer, decision.name) == ("reject", "nobody")


def test_a_run_by_hand_waits_in_its_process_for_the_same_form(
    prefect: PrefectServer, store: DirectoryStore, runner: FakeRunner
) -> None:
    states: list[Any] = []
    context = contextvars.copy_context()
    thread = threading.Thread(
        target=lambda: states.append(context.run(pipeline, store.uri, overrides=ASKS, return_state=True)), daemon=True
    )
    thread.start()
    deadline = time.monotonic() + SECONDS
    while (run := prefect.last_run()).state_name != "Paused":
        assert time.monotonic() < deadline, run.state
        time.sleep(0.2)
    assert store.peek(lineage_lock("main")) is not None
    while answer(prefect, run, answer="accept", **BY_ANN) != "ACCEPT":  # the form is there a moment later
        assert time.monotonic() < deadline
        time.sleep(0.2)
    thread.join(SECONDS)
    assert [state.name for state in states] == ["Released"]


def test_an_asking_run_passes_by_an_override_from_a_command_too(store: DirectoryStore, deployment: UUID) -> None:
    begin(deployment)
    plan = plan_again(store, last(store).run_key, None, ())
    passed = let_pass(store, plan, judged(store), "Ben", "looked at by hand")
    assert (passed.passes, passed.asks, passed.overrides[0].refusals) == (True, (), judged(store).overrides[0].refusals)
    assert "recall@10" in passed.overrides[0].refusals[0]
    with pytest.raises(ConfigError, match="nothing to override"):
        let_pass(store, plan, passed, "Ben", "again")

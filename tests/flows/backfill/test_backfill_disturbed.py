"""A backfill beside other processes, and one that is paused, cancelled or interrupted."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import Pause
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Suspended

from flows.orchestration.backfill_page import control_flow_run
from infra.store.base import Conflict, Lock
from infra.store.directory import DirectoryStore
from tasks.campaigns import stored
from tasks.campaigns.campaign import Campaign
from tasks.contracts.jobs import JobSpec, Waiter
from tasks.contracts.stages import Stage
from tasks.foundation.errors import CancelledError, ConfigError, FailureClass
from tasks.runs import branches, ledger, lineage
from tasks.runs.rollback import rollback
from tests.flows.backfill.failing import Failing, children, done, planned, started
from tests.support.fakes.fake_runner import ingest
from tests.support.processes.prefect_server import PrefectServer

# --- other processes at the same time---------------------------------------------------------------------------------


def test_the_release_waits_for_a_run_of_the_lineage(
    begun: DirectoryStore, runner: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process locks the lineage while the branch is trained, until the release needs the lock."""
    monkeypatch.setattr("flows.orchestration.backfill_execution.AGAIN_SECONDS", 0.1)
    refused = threading.Event()
    original = begun.lock

    def lock(key: str) -> contextlib.AbstractContextManager[Lock]:
        if key == "lineages/main.run" and not refused.is_set():
            refused.set()
            raise Conflict("lineages/main.run is in use by another process")
        return original(key)

    monkeypatch.setattr(DirectoryStore, "lock", lambda self, key: lock(key))
    assert done(begun, "2021-Q3", "2021-Q4").state == "Released"
    assert refused.is_set()


def test_a_backfill_does_not_run_twice_at_once(begun: DirectoryStore, impatient: None) -> None:
    plan = planned(begun, "2021-Q3", "2021-Q4")
    with begun.lock(f"lineages/{plan.branch}.run"), pytest.raises(Conflict, match="is in use by process"):
        done(begun, "2021-Q3", "2021-Q4")
    with begun.lock("lineages/other.run"):
        assert done(begun, "2021-Q3", "2021-Q4").state == "Released"


def test_an_overtaken_branch_is_neither_released_nor_adopted(begun: DirectoryStore, runner: Failing) -> None:
    serving = begun.read("releases/CURRENT")

    def overtake(spec: JobSpec, waiter: Waiter) -> None:
        if spec.stage is Stage.infer:
            branches.adopt(begun, "main", "other", instead_of="main")

    runner.meanwhile = overtake
    with pytest.raises(ConfigError, match=r"now continue other"):
        done(begun, "2021-Q3", "2021-Q4")
    assert (begun.read("releases/CURRENT"), branches.active(begun, "main")) == (serving, "other")
    assert "release" not in runner.stages


def test_the_gates_compare_with_a_champion_released_meanwhile(begun: DirectoryStore, runner: Failing) -> None:
    def release_another(spec: JobSpec, waiter: Waiter) -> None:
        if spec.stage is Stage.infer and spec.config.lineage != "main":
            rollback(begun, to=1)

    runner.meanwhile = release_another
    assert done(begun, "2021-Q3", "2021-Q4").state == "Released"
    champions = [spec.inputs.champion for spec in runner.specs if spec.stage is Stage.evaluate]  # pyright: ignore[reportAttributeAccessIssue]
    assert [champion.checkpoint.step for champion in champions if champion] == [30, 10]


# --- pause, cancel, kill ----------------------------------------------------------------------------------------


def wait_for(what: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def running_backfill(store: DirectoryStore) -> Campaign:
    (state,) = stored.read_all(store)
    return state


def test_a_paused_backfill_starts_nothing_until_it_is_resumed(
    begun: DirectoryStore, runner: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(begun, "2022-Q1")
    seen: list[str] = []

    def pause_in_the_first_training(spec: JobSpec, waiter: Waiter) -> None:
        if (spec.span.name, spec.stage) == ("2021-Q4", Stage.train):
            seen.append(control_flow_run(UUID(running_backfill(begun).flow_run), "pause"))
            threading.Thread(target=resume_later, daemon=True).start()
            wait_for(lambda: running_backfill(begun).state == "Paused")

    def resume_later() -> None:
        wait_for(lambda: running_backfill(begun).state == "Paused")
        wait_for(lambda: lineage.completed(begun, str(running_backfill(begun).branch))[3:])  # the training itself ends
        time.sleep(0.5)  # no stage may start meanwhile
        seen.extend(runner.stages)
        with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: password}):
            control_flow_run(UUID(running_backfill(begun).flow_run), "resume")

    url, password = PREFECT_API_URL.value(), PREFECT_API_AUTH_STRING.value()
    runner.meanwhile = pause_in_the_first_training
    state = done(begun, "2021-Q4", "2022-Q1")
    assert state.state == "Released"
    assert seen[0].startswith("it is paused")
    assert seen[1:] == ["validate", "health", "warmup", "train"]
    with pytest.raises(ConfigError, match="is Completed"):
        control_flow_run(UUID(state.flow_run), "cancel")


def test_a_cancelled_backfill_ends_its_stages_and_continues_when_started_again(
    prefect: PrefectServer, begun: DirectoryStore, runner: Failing
) -> None:
    ingest(begun, "2022-Q1")
    left: list[str] = []

    def cancel(spec: JobSpec, waiter: Waiter) -> None:
        if (spec.span.name, spec.stage) == ("2022-Q1", Stage.train) and not left:
            left.append("begun")
            control_flow_run(UUID(running_backfill(begun).flow_run), "cancel")
            with pytest.raises(CancelledError) as stopped:
                wait_for(waiter.pulse)  # type: ignore[func-returns-value]
            left.append("ended")
            raise stopped.value

    runner.meanwhile = cancel
    ended = started(begun, "2021-Q4", "2022-Q1")
    assert ended.is_cancelled()
    assert left == ["begun", "ended"]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("span")]
    state = running_backfill(begun)
    assert (state.state, state.ended_at is not None) == ("Cancelled", True)
    assert {run.name: run.state_name for run in children(begun, planned(begun, "2021-Q4", "2022-Q1"))} == {
        "2021-Q4 attempt 1": "Completed", "2022-Q1 attempt 1": "Cancelled",
    }  # fmt: skip
    last = ledger.records(begun)[-1]
    assert (last.stage, last.failure) == (Stage.train, FailureClass.CANCELLED)
    runner.specs.clear()
    assert done(begun, "2021-Q4", "2022-Q1").state == "Released"
    assert runner.stages == ["train", "evaluate", "infer", "release"]


def test_a_suspended_backfill_ends_and_continues_when_started_again(begun: DirectoryStore, runner: Failing) -> None:
    """The pause button of the Prefect UI does this to a deployed backfill. The running training ends normally."""

    def suspend(spec: JobSpec, waiter: Waiter) -> None:
        if (spec.span.name, spec.stage) == ("2021-Q4", Stage.train):
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(UUID(running_backfill(begun).flow_run), Suspended(), force=True)
            time.sleep(0.6)  # three polls of the state

    runner.meanwhile = suspend
    with pytest.raises(Pause):
        done(begun, "2021-Q3", "2021-Q4")
    assert runner.stages == ["validate", "health", "warmup", "train"]
    assert running_backfill(begun).state == "Paused"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("span")]
    runner.meanwhile = lambda spec, waiter: None
    assert done(begun, "2021-Q3", "2021-Q4").state == "Released"
    assert runner.stages[4:] == ["evaluate", "infer", "release"]


def test_an_interruption_of_the_main_thread_ends_the_spans(
    begun: DirectoryStore, runner: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_training, ended = threading.Event(), threading.Event()

    def wait_in_training(spec: JobSpec, waiter: Waiter) -> None:
        if spec.stage is Stage.train:
            in_training.set()
            try:
                wait_for(waiter.pulse)  # type: ignore[func-returns-value]
            finally:
                ended.set()

    def interrupted(self: object) -> None:
        if in_training.is_set():
            raise KeyboardInterrupt

    runner.meanwhile = wait_in_training
    monkeypatch.setattr(
        "flows.orchestration.backfill_page.StatusPage.flush", lambda self, at_once=False: at_once or interrupted(self)
    )
    with pytest.raises(KeyboardInterrupt):
        done(begun, "2021-Q3", "2021-Q4")
    assert ended.is_set()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("span")]

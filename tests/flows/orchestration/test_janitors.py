"""Late janitors give way to the newest, and dead ones free their place in the queue; on a real Prefect server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.flow_engine import run_flow
from prefect.states import Cancelled, Pending, Running, Scheduled

from flows.orchestration import janitors
from flows.orchestration.janitors import QUEUE, end_dead_janitors, newest_only
from infra import work_pool
from tests.support.processes.prefect_server import PrefectServer

ROOT = Path(__file__).resolve().parents[3]
POOL = "janitors-of-tests"
did: list[str] = []


@flow
@newest_only
def look(place: str = "here") -> str:
    did.append(place)
    return place


@pytest.fixture
def deployment(prefect: PrefectServer) -> Iterator[UUID]:
    did.clear()
    with prefect.in_use():
        with get_client(sync_client=True) as client:
            work_pool.make_pool(client, POOL)
            for _ in range(2):  # safe to repeat
                work_pool.limit_janitors(client, POOL, QUEUE)
        made: Any = look.to_deployment(name="late", work_pool_name=POOL, work_queue_name=QUEUE)
        identity = made.apply()
        yield identity
        with get_client(sync_client=True) as client:
            client.delete_deployment(identity)


def due(deployment: UUID, minutes_ago: float, place: str = "here") -> FlowRun:
    """A run that should have started then."""
    at: Any = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=minutes_ago)
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(
            deployment, state=Scheduled(scheduled_time=at), parameters={"place": place}
        )
        return client.read_flow_run(run.id)


def begin(run: FlowRun) -> str:
    """Run it in this process, as a worker would; the name of its state then."""
    run_flow(look, flow_run=run, parameters=run.parameters, return_type="state")
    return name(run)


def name(run: FlowRun) -> str:
    with get_client(sync_client=True) as client:
        return str(client.read_flow_run(run.id).state_name).replace("Late", "Scheduled")  # after some seconds


def set_state(run: FlowRun, state: Any) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, state, force=True)


def test_of_many_late_runs_the_newest_does_the_work_and_the_others_need_no_process(deployment: UUID) -> None:
    runs = [due(deployment, minutes) for minutes in range(60, 10, -10)]
    to_come = due(deployment, -30)
    assert begin(runs[0]) == "Collapsed"
    assert [name(run) for run in [*runs[1:], to_come]] == ["Collapsed"] * 3 + ["Scheduled", "Scheduled"]
    assert did == []
    assert begin(runs[-1]) == "Completed"
    assert did == ["here"]


def test_a_later_run_that_has_begun_counts_and_one_that_was_cancelled_or_does_another_thing_does_not(
    deployment: UUID,
) -> None:
    first, cancelled, _ = due(deployment, 30), due(deployment, 20), due(deployment, 20, "there")
    set_state(cancelled, Cancelled())
    assert begin(first) == "Completed"
    second, begun = due(deployment, 15), due(deployment, 10)
    set_state(begun, Running())
    assert (begin(second), name(begun)) == ("Collapsed", "Running")


def test_janitors_that_died_do_not_keep_their_places(deployment: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = [due(deployment, 30), due(deployment, 20), due(deployment, 10)]
    for run, state in zip(dead, (Running(), Pending(), Running()), strict=True):
        set_state(run, state)
    waiting = due(deployment, 5)
    with get_client(sync_client=True) as client:
        assert client.get_scheduled_flow_runs_for_work_pool(POOL, [QUEUE]) == []
    end_dead_janitors()
    assert [name(run) for run in dead] == ["Running", "Pending", "Running"], "they may live"
    monkeypatch.setattr(janitors, "_DEAD_AFTER", dt.timedelta(0))
    end_dead_janitors()
    assert [name(run) for run in [*dead, waiting]] == [*["Crashed"] * 3, "Scheduled"]
    with get_client(sync_client=True) as client:
        (free,) = client.get_scheduled_flow_runs_for_work_pool(POOL, [QUEUE])
    assert free.flow_run.id == waiting.id


def test_janitors_of_a_worker_without_heartbeats_free_their_places_at_once(deployment: UUID) -> None:
    runs = {worker: due(deployment, 10) for worker in ("of the power cut", "that lives")}
    with get_client(sync_client=True) as client:
        client.send_worker_heartbeat(POOL, "that lives", heartbeat_interval_seconds=30)
        for worker, run in runs.items():
            client.update_flow_run_labels(run.id, {"prefect.worker.name": worker})
            set_state(run, Running())
    end_dead_janitors()
    assert {worker: name(run) for worker, run in runs.items()} == {
        "of the power cut": "Crashed",
        "that lives": "Running",
    }


def test_the_deployments_that_look_after_others_are_in_the_queue() -> None:
    tree = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    inside = [each for each in tree["deployments"] if each["work_pool"].get("work_queue_name") == QUEUE]
    assert {each["entrypoint"].rpartition(":")[2] for each in inside} == {"watch", "reap", "report", "prune"}

"""Scheduled runs on a real server with a real worker: which span each takes, in which order, and how often.

Only the workers of the stages are fakes. Takes about a minute.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import httpx
import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun
from prefect.states import Scheduled

from flows.cli import deploying
from flows.cli.terminal.options import RunOptions
from infra import deployments
from infra.prefect_server import client_environment
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.runs import ledger
from tasks.runs.run import read_runs
from tasks.runs.snapshot import Snapshot
from tests.support.fakes.fake_runner import ingest
from tests.support.processes.prefect_server import PrefectServer
from tests.support.processes.services import FAKE_WORKERS, WORKER, running

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240.0
ZONE = "Europe/Berlin"
SETTINGS = ("model.scratch.layers=1", f"schedule.timezone={ZONE}", "schedule.cron=30 2 * * *")


class World(NamedTuple):
    store: DirectoryStore
    deployment: UUID
    log: Path

    def schedule(self, at: dt.datetime, **parameters: str) -> FlowRun:
        """A run as the scheduler makes them, for a time that has passed."""
        with get_client(sync_client=True) as client:
            return client.create_flow_run_from_deployment(
                self.deployment, parameters={"scheduled_in": ZONE, **parameters}, state=Scheduled(scheduled_time=at)
            )

    def ended(self, run: FlowRun, runs: int = 1) -> FlowRun:
        """The flow run after so many tries. A busy server may be silent for a minute, its database locked."""
        deadline, now = time.monotonic() + SECONDS, run
        while True:
            with contextlib.suppress(httpx.TimeoutException), get_client(sync_client=True) as client:
                now = client.read_flow_run(run.id)
            if now.state is not None and now.state.is_final() and now.run_count == runs:
                return now
            assert time.monotonic() < deadline, f"{now.name} is {now.state}; the worker says:\n{self.log.read_text()}"
            time.sleep(0.3)

    def children(self, run: FlowRun) -> list[FlowRun]:
        parent = FlowRunFilterParentFlowRunId(any_=[run.id])
        with get_client(sync_client=True) as client:
            found = client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=parent))
        return sorted(found, key=lambda child: str(child.start_time))

    def trained(self, since: str) -> list[str]:
        """The spans of the attempts at training since then, in their order."""
        attempts = [record for record in ledger.records(self.store) if record.stage is Stage.train]
        by_start = sorted(attempts, key=lambda record: record.started_at)
        return [record.span for record in by_start if record.span >= since]


@pytest.fixture(scope="module")
def world(prefect: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A lineage that has trained 2026-03-20, its deployment by day, and a worker."""
    folder = tmp_path_factory.mktemp("scheduled")
    store = DirectoryStore(folder / "workspace")
    ingest(store, "2026-03-20")
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        worker = {"PYTHONPATH": FAKE_WORKERS, "PREFECT_WORKER_QUERY_SECONDS": "3"}
        # Three runs at once keep the database of a busy server locked: it refuses requests for seconds.
        worker["PREFECT_CLIENT_MAX_RETRIES"] = "5"
        for name, value in (client_environment(prefect.server) | worker).items():
            patch.setenv(name, value)
        stack.enter_context(prefect.in_use())
        patch.setattr(deployments, "FILE", only_the_pipeline(folder))
        deploying.deploy(RunOptions(store, overrides=SETTINGS))
        with get_client(sync_client=True) as client:
            deployment = client.read_deployment_by_name("pipeline/workspace-pipeline").id
        log = folder / "worker.log"
        stack.enter_context(running(WORKER, log))
        one = World(store, deployment, log)
        first = one.ended(one.schedule(dt.datetime(2026, 3, 21, 2, 30, tzinfo=ZoneInfo(ZONE))))
        assert (first.name, first.state_name) == ("2026-03-20 attempt 1", "Released"), log.read_text()
        yield one


def only_the_pipeline(folder: Path) -> Path:
    """prefect.yaml without the other deployments, of which none is to start by itself."""
    tree = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    tree["deployments"] = [each for each in tree["deployments"] if each["name"] == "workspace-pipeline"]
    file = folder / "prefect.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def test_across_a_clock_change_each_run_trains_its_own_span_once(world: World) -> None:
    """All three are late and start at once, so they wait in the queue."""
    spans = ["2026-03-27", "2026-03-28", "2026-03-29"]
    ingest(world.store, *spans)
    times = [  # 02:30 of that zone; on the 29th there is no such time, and Prefect's scheduler takes 01:30
        dt.datetime(2026, 3, 28, 1, 30, tzinfo=dt.UTC),
        dt.datetime(2026, 3, 29, 0, 30, tzinfo=dt.UTC),
        dt.datetime(2026, 3, 30, 0, 30, tzinfo=dt.UTC),
    ]
    runs = [world.ended(run) for run in [world.schedule(at) for at in times]]
    ended = [(run.state_name, run.name.partition(" ")[0]) for run in runs]
    assert ended == [("Released", span) for span in spans], f"{[run.state for run in runs]}\n{world.log.read_text()}"
    assert world.trained(since="2026-03-27") == spans
    scheduled = {
        one.flow_run: one.scheduled_at for each in read_runs(Snapshot(world.store), ()) for one in each.invocations
    }
    assert [scheduled[str(run.id)] for run in runs] == [at.isoformat() for at in times]


def test_a_late_retry_takes_the_span_of_the_scheduled_time(world: World) -> None:
    at = dt.datetime(2026, 4, 1, 0, 30, tzinfo=dt.UTC)
    run = world.schedule(at)
    failed = world.ended(run)
    assert (failed.name.split(" ", 2)[2], failed.state_name) == ("2026-04-01 00:30 UTC", "Failed")
    assert failed.state is not None
    assert "DataError: span 2026-03-31" in str(failed.state.message)
    ingest(world.store, "2026-03-31", "2026-04-01", "2026-04-02")
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, Scheduled(name="AwaitingRetry", message="Retry from the UI"), force=True)
    again = world.ended(run, runs=2)
    assert (again.name, again.state_name) == ("2026-03-31 attempt 1", "Released")
    assert world.trained(since="2026-03-31") == ["2026-03-31"]


def test_after_days_of_downtime_the_next_run_trains_each_span_once_in_order(world: World) -> None:
    before = ["2026-04-01", "2026-04-02"]  # left by the test before
    ingest(world.store, "2026-04-06")
    run = world.ended(world.schedule(dt.datetime(2026, 4, 7, 0, 30, tzinfo=dt.UTC)))
    assert (run.state_name, run.name) == ("Released", "2026-04-06 attempt 1")
    children = world.children(run)
    assert [child.name for child in children if child.name.endswith("attempt 1")] == [
        f"{span} attempt 1" for span in before
    ]
    assert world.trained(since="2026-04-01") == [*before, "2026-04-06"]


def test_a_named_span_is_taken_after_the_missed_spans_before_it(world: World) -> None:
    ingest(world.store, "2026-05-01", "2026-05-02", "2026-05-03")
    run = world.ended(world.schedule(dt.datetime(2026, 5, 20, tzinfo=dt.UTC), span="2026-05-02"))
    assert (run.state_name, run.name) == ("Released", "2026-05-02 attempt 1")
    assert world.trained(since="2026-05-01") == ["2026-05-01", "2026-05-02"]


def test_scheduled_runs_have_the_zone_of_the_schedule(world: World) -> None:
    deadline = time.monotonic() + SECONDS
    planned: list[FlowRun] = []
    while not planned:  # the scheduler makes them some seconds after the deployment
        assert time.monotonic() < deadline
        with get_client(sync_client=True) as client:
            planned = [run for run in client.read_flow_runs() if run.auto_scheduled]
        time.sleep(0.3)
    assert {run.parameters["scheduled_in"] for run in planned} == {ZONE}
    assert {run.parameters.get("span") for run in planned} <= {None, ""}
    local = [run.expected_start_time.astimezone(ZoneInfo(ZONE)) for run in planned if run.expected_start_time]
    assert {(at.hour, at.minute) for at in local} == {(2, 30)}

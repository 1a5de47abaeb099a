"""The worker of the deployments and all its flow runs are killed in a stage; then only a new worker is started.

The watch, here each minute, starts the run again, and it ends with a release. Server, worker, flows and signals are
real; only the workers of the stages are stand-ins, so that a stage can be held. Takes some minutes.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import httpx
import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.states import Scheduled

from flows.cli import deploying
from flows.cli.terminal.options import RunOptions
from infra import deployments
from infra.prefect_server import client_environment
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.runs import releases
from tests.support.fakes.fake_runner import ingest
from tests.support.fakes.replacing import HOLDS
from tests.support.processes.prefect_server import PrefectServer
from tests.support.processes.services import FAKE_WORKERS, ROOT, WORKER

pytestmark = [pytest.mark.pipeline, pytest.mark.proof]

SECONDS = 400.0
ZONE = "Europe/Berlin"
SETTINGS = ("model.scratch.layers=1", f"schedule.timezone={ZONE}", "schedule.cron=30 2 * * *")
STAGES = tuple(map(str, Stage))


class World(NamedTuple):
    store: DirectoryStore
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "worker.log"

    @contextlib.contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """A worker; at the end neither it nor a flow run of it is left, as after a power cut."""
        with self.log.open("ab") as output:
            process = subprocess.Popen(WORKER, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            yield process
        finally:
            for pid in (process.pid, *below(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()

    def wait(self, what: str, until: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(httpx.TimeoutException):  # a busy server may be silent for a while
                if until():
                    return
            assert time.monotonic() < deadline, f"{what} did not happen; the worker says:\n{self.log.read_text()}"
            time.sleep(0.3)

    def released(self) -> list[str]:
        return [release.span.name for release in releases.history(self.store)]


def below(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


@pytest.fixture(scope="module")
def world(prefect: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The deployments of the pipeline and of the watch, which comes each minute, and a first span that is released."""
    folder = tmp_path_factory.mktemp("orchestrators")
    one = World(DirectoryStore(folder / "workspace"), folder)
    ingest(one.store, span(0))
    (folder / "holds").mkdir()
    with pytest.MonkeyPatch.context() as patch, prefect.in_use():
        worker = {"PYTHONPATH": FAKE_WORKERS, "PREFECT_WORKER_QUERY_SECONDS": "2", HOLDS: str(folder / "holds")}
        for name, value in (client_environment(prefect.server) | worker).items():
            patch.setenv(name, value)
        patch.setattr(deployments, "FILE", pipeline_and_watch(folder))
        deploying.deploy(RunOptions(one.store, overrides=SETTINGS))
        watch_comes(False)
        schedule(0)
        with one.worker():
            one.wait("the first release", lambda: one.released() == [span(0)])
        yield one


def pipeline_and_watch(folder: Path) -> Path:
    tree = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    flows = {each["entrypoint"].rpartition(":")[2]: each for each in tree["deployments"]}
    flows["watch"]["schedules"][0]["cron"] = "* * * * *"
    file = folder / "prefect.yaml"
    file.write_text(yaml.safe_dump(tree | {"deployments": [flows["pipeline"], flows["watch"]]}))
    return file


def day(number: int) -> dt.date:
    return dt.datetime.now(dt.UTC).date() - dt.timedelta(days=20 - number)


def span(number: int) -> str:
    """The span of the nth stage, one by day, all of them over."""
    return str(day(number))


def schedule(number: int) -> FlowRun:
    """The run of a span, as the scheduler makes it."""
    at = dt.datetime.combine(day(number + 1), dt.time(2, 30), ZoneInfo(ZONE))
    with get_client(sync_client=True) as client:
        return client.create_flow_run_from_deployment(
            client.read_deployment_by_name("pipeline/workspace-pipeline").id,
            parameters={"scheduled_in": ZONE},
            state=Scheduled(scheduled_time=at),  # pyright: ignore[reportArgumentType]
        )


def watch_comes(each_minute: bool) -> None:
    """Switch the schedule of the watch."""
    with get_client(sync_client=True) as client:
        identity = client.read_deployment_by_name("watch/workspace-watch").id
        (client.resume_deployment if each_minute else client.pause_deployment)(identity)


def started_by_the_watch(name: str) -> list[str]:
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs()
    keys = [str(run.idempotency_key) for run in runs if "catch-up" in run.tags]
    return sorted(key.rpartition(":")[2] for key in keys if f":{name}:" in key)


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_whose_orchestrator_was_killed_in_a_stage_goes_on_by_itself(world: World, stage: str) -> None:
    number = 1 + STAGES.index(stage)
    hold = world.folder / "holds" / f"{stage}-{span(number)}"
    hold.touch()
    ingest(world.store, span(number))
    with world.worker():
        schedule(number)
        world.wait(f"the stage {stage}", lambda: bool(hold.read_text()))
    hold.unlink()
    assert span(number) not in world.released()
    watch_comes(True)
    with world.worker():  # nothing else is done
        world.wait("the release", lambda: span(number) in world.released())
    watch_comes(False)
    assert started_by_the_watch(span(number)) == ["i2"]

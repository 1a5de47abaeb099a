"""Millrace as it is operated: a Prefect server, the deployments, a worker of the pool, the pages; all ended by pid."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun

from infra import prefect_server
from infra.prefect_server import Server, client_environment
from infra.store.directory import DirectoryStore
from tests.support.fakes.fake_runner import ingest
from tests.support.fakes.replacing import HOLDS
from tests.support.processes import forked
from tests.support.processes.prefect_server import client_of
from tests.support.processes.services import FAKE_WORKERS, MILLRACE, WORKER, running

SECONDS = 90.0
DEPLOY_SECONDS = 180.0
POLL_SECONDS = 0.3
SPANS = ("2021-Q1", "2021-Q2", "2021-Q3", "2021-Q4")


class Operated(NamedTuple):
    """A workspace with four spans, and the servers that show what happens to them."""

    folder: Path
    url: str  # of the Prefect UI
    password: str  # that it asks for
    reports: str  # of millrace serve
    environment: dict[str, str]

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def worker_log(self) -> Path:
        return self.folder / "worker.log"

    def fresh_workspace(self, name: str) -> str:
        """Another workspace with the same spans, for a test whose runs no other test may see."""
        ingest(DirectoryStore(self.folder / name), *SPANS)
        return str(self.folder / name)

    @contextlib.contextmanager
    def held(self, stage: str) -> Iterator[Hold]:
        """Let a stage such as `train-2021-Q1` wait in its middle until it is let go or the block ends."""
        hold = Hold(self, stage)
        hold.file.touch()
        try:
            yield hold
        finally:
            hold.let_go()

    def wait_for_end(self, run_id: str) -> FlowRun:
        """The flow run, once it is over."""

        def is_over() -> bool:
            state = self._flow_run(run_id).state
            return state is not None and state.is_final()

        self.wait(f"run {run_id} came to an end", is_over)
        return self._flow_run(run_id)

    def runs_below(self, run_id: str) -> list[FlowRun]:
        """The flow runs that are part of another."""
        below = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[UUID(run_id)]))
        with get_client(sync_client=True) as client:
            return client.read_flow_runs(flow_run_filter=below)

    def wait(self, what: str, happened: Callable[[], object]) -> None:
        """Until `happened` says so."""
        deadline = time.monotonic() + SECONDS
        while not happened():
            assert time.monotonic() < deadline, f"never: {what}; the worker says:\n{self.worker_log.read_text()}"
            time.sleep(POLL_SECONDS)

    def _flow_run(self, run_id: str) -> FlowRun:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(UUID(run_id))


class Hold(NamedTuple):
    """A stage of a span that waits for a test."""

    operated: Operated
    stage: str

    @property
    def file(self) -> Path:
        return self.operated.folder / "holds" / self.stage

    def wait(self) -> None:
        """Until the stage waits."""
        self.operated.wait(f"{self.stage} came to its middle", self.file.read_text)

    def let_go(self) -> None:
        self.file.unlink(missing_ok=True)


@contextlib.contextmanager
def operated(folder: Path, server: Server) -> Iterator[Operated]:
    """Start all of it but the server, below `folder`; stop it at the end of the block."""
    (folder / "holds").mkdir()
    ingest(DirectoryStore(folder / "workspace"), *SPANS)
    config_file, port = folder / "shop.yaml", _free_port()
    reports = f"http://127.0.0.1:{port}"
    settings = {"pipeline": "shop", "model": {"scratch": {"layers": 1}}, "links": {"reports": reports}}
    config_file.write_text(yaml.safe_dump(settings))
    with contextlib.ExitStack() as stack:
        environment = os.environ | client_environment(server)
        environment |= {"MILLRACE_WORKSPACE": str(folder / "workspace"), "PREFECT_WORKER_QUERY_SECONDS": "1"}
        stack.enter_context(client_of(server))
        one = Operated(
            folder, server.ui_url, str(prefect_server.read_password(Path(server.home))), reports, environment
        )
        _deploy(one, config_file)
        # Both start as documented, but the flow runs of the worker have stages without arithmetic.
        fake = {"PYTHONPATH": FAKE_WORKERS, HOLDS: str(folder / "holds")}
        stack.enter_context(running(WORKER, one.worker_log, environment | fake))
        serve = (str(MILLRACE), "serve", "--port", str(port))
        stack.enter_context(running(serve, folder / "serve.log", environment))
        yield one


def _deploy(one: Operated, config_file: Path) -> None:
    """All deployments, without their schedules: nothing starts but what a test starts."""
    words = ("deploy", "--config", str(config_file))
    done = forked.millrace(*words, environment=one.environment, seconds=DEPLOY_SECONDS)
    assert done.code == 0, done.out + done.err
    with get_client(sync_client=True) as client:
        for deployment in client.read_deployments():
            for schedule in deployment.schedules:
                client.update_deployment_schedule(deployment.id, schedule.id, active=False)  # pyright: ignore


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

"""The deployments of prefect.yaml on a real server with a real worker: a run on AWS Batch is started and cancelled.

Batch is the emulator, in which no machine comes: what is cancelled is a job that waits.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun

from infra.compute.batch.claim import claims_below
from infra.prefect_server import client_environment
from infra.store.directory import DirectoryStore
from tests.support.cloud.batch import BatchServer
from tests.support.processes.prefect_server import PrefectServer
from tests.support.processes.services import WORKER, running
from tests.support.workspace.shop import Shop, open_shop

pytestmark = [pytest.mark.pipeline, pytest.mark.proof]

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 90.0


class Deployed(NamedTuple):
    shop: Shop
    batch: BatchServer
    environment: dict[str, str]
    log: Path

    def command(self, name: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(Path(sys.executable).with_name(name)), *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def deployed(prefect: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """As docs/aws.md does it: a server, the deployments, a worker of the pool."""
    folder = tmp_path_factory.mktemp("deployed")
    shop = open_shop(folder, prefect.home, rows_per_span=100)
    config_file = folder / "batch.yaml"
    config_file.write_text(shop.config_file.read_text() + "compute: batch\n")
    with contextlib.ExitStack() as stack:
        environment = os.environ | client_environment(prefect.server)
        batch = BatchServer(grace_seconds=1.0)
        stack.callback(batch.stop)
        batch.register_all()
        environment |= {
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_BATCH": batch.url,
            "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": batch.url,
            "PREFECT_WORKER_QUERY_SECONDS": "1",
        }
        stack.enter_context(prefect.in_use())
        one = Deployed(shop, batch, environment, folder / "worker.log")
        one.command(
            "millrace", "deploy", "--workspace", str(shop.workspace), "--config", str(config_file), "--name", "shop"
        )
        stack.enter_context(running(WORKER, one.log, one.environment))
        yield one


def run_of(client: SyncPrefectClient, deployment: str) -> FlowRun:
    return client.create_flow_run_from_deployment(client.read_deployment_by_name(deployment).id)


def wait(deployed: Deployed, what: str, until: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not until():
        assert time.monotonic() < deadline, f"{what} did not happen; the worker says:\n{deployed.log.read_text()}"
        time.sleep(0.3)


def test_cancelling_a_deployed_run_ends_its_job(deployed: Deployed) -> None:
    deployed.batch.hold_runnable()
    with get_client(sync_client=True) as client:
        run = run_of(client, "pipeline/shop-pipeline")
        wait(deployed, "the job's submission", deployed.batch.jobs)
        (job,) = deployed.batch.jobs()
        assert job["tags"]["millrace-flow-run"] == str(run.id)
        deployed.command("prefect", "flow-run", "cancel", str(run.id))
        wait(deployed, "the job's end", lambda: deployed.batch.jobs()[0]["status"] == "FAILED")
        wait(deployed, "the end of the flow run", lambda: is_final(client, run))
        state = client.read_flow_run(run.id).state
    assert state is not None
    assert state.name == "Cancelled"
    assert len(deployed.batch.jobs()) == 1
    (claim,) = claims_below(DirectoryStore(deployed.shop.workspace), "runs").values()
    assert claim.state in ("ending", "over")


def test_the_reaper_is_deployed_and_finds_nothing_to_end(deployed: Deployed) -> None:
    with get_client(sync_client=True) as client:
        run = run_of(client, "reap/shop-reap")
        wait(deployed, "the reaper's end", lambda: is_final(client, run))
        state = client.read_flow_run(run.id).state
    assert state is not None
    assert state.name == "Completed", state.message


def is_final(client: SyncPrefectClient, run: FlowRun) -> bool:
    state = client.read_flow_run(run.id).state
    return state is not None and state.is_final()

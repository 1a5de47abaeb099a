"""`millrace drain` against a real server: runs that wait, run and are suspended while the pool is drained."""

from __future__ import annotations

import json
import os
import subprocess
from subprocess import PIPE
from typing import Any

from prefect.client.orchestration import get_client
from prefect.flows import flow
from prefect.states import Completed, Running, Suspended

from infra import work_pool
from infra.prefect_server import client_environment
from tests.support.processes import forked
from tests.support.processes.command import CommandResult
from tests.support.processes.prefect_server import PrefectServer
from tests.support.processes.services import MILLRACE

SECONDS = 120.0
POOL = "millrace"


@flow
def work() -> None:
    """Its runs have a state, and no process."""


def drain(prefect: PrefectServer, *arguments: str) -> CommandResult:
    return forked.millrace("drain", *arguments, "--json", environment=as_its_client(prefect), seconds=SECONDS)


def as_its_client(prefect: PrefectServer) -> dict[str, str]:
    return os.environ | client_environment(prefect.server) | {"PREFECT_HOME": str(prefect.home)}


def test_no_run_starts_while_the_present_ones_are_waited_for(prefect: PrefectServer) -> None:
    with prefect.in_use(), get_client(sync_client=True) as client:
        none = drain(prefect)
        assert (none.code, "work pool millrace" in none.err) == (78, True)

        work_pool.make_pool(client, POOL)
        made: Any = work.to_deployment(name="shop-work", work_pool_name=POOL)
        identity = made.apply()
        busy, asked, late = (
            client.create_flow_run_from_deployment(identity, name=name) for name in ("busy", "asked", "late")
        )
        client.set_flow_run_state(busy.id, Running(), force=True)
        client.set_flow_run_state(asked.id, Suspended(), force=True)
        words = [str(MILLRACE), "drain", "--json"]
        with subprocess.Popen(words, env=as_its_client(prefect), stdout=PIPE, stderr=PIPE, text=True) as command:
            assert command.stderr is not None
            waits = next((line for line in command.stderr if line.startswith("waits for busy;")), "")
            assert f"cancel ID ({busy.id})" in waits
            assert client.read_work_pool(POOL).is_paused
            assert client.get_scheduled_flow_runs_for_work_pool(POOL) == []
            assert command.poll() is None, "a run is still active"
            client.set_flow_run_state(busy.id, Completed(), force=True)
            out, _ = command.communicate(timeout=SECONDS)
        assert command.returncode == 0
        output = json.loads(out)
        assert (output["paused"], output["ended"]) == (True, ["busy"])

        assert drain(prefect, "--off").code == 0
        (waiting,) = client.get_scheduled_flow_runs_for_work_pool(POOL)
        assert waiting.flow_run.id == late.id

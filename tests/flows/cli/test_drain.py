"""`millrace drain` against a real server: runs that wait, run and are suspended while the pool is drained."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from prefect.client.orchestration import get_client
from prefect.flows import flow
from prefect.states import Completed, Running, Suspended

from infra import work_pool
from infra.prefect_server import client_environment
from tests.support.processes import forked
from tests.support.processes.command import CommandResult
from tests.support.processes.prefect_server import PrefectServer

SECONDS = 120.0
POOL = "millrace"


@flow
def work() -> None:
    """Its runs have a state, and no process."""


def drain(prefect: PrefectServer, *arguments: str) -> CommandResult:
    environment = os.environ | client_environment(prefect.server) | {"PREFECT_HOME": str(prefect.home)}
    return forked.millrace("drain", *arguments, "--json", environment=environment, seconds=SECONDS)


def test_no_run_starts_while_the_present_ones_are_waited_for(prefect: PrefectServer) -> None:
    with prefect.in_use(), get_client(sync_client=True) as client:
        none = drain(prefect)
        assert (none.code, "has no work pool millrace" in none.err) == (78, True)

        work_pool.make_pool(client, POOL)
        made: Any = work.to_deployment(name="shop-work", work_pool_name=POOL)
        identity = made.apply()
        busy, asked, late = (
            client.create_flow_run_from_deployment(identity, name=name) for name in ("busy", "asked", "late")
        )
        client.set_flow_run_state(busy.id, Running(), force=True)
        client.set_flow_run_state(asked.id, Suspended(), force=True)
        results: list[CommandResult] = []
        command = threading.Thread(target=lambda: results.append(drain(prefect)), daemon=True)
        command.start()
        deadline = time.monotonic() + SECONDS
        while not client.read_work_pool(POOL).is_paused:
            assert time.monotonic() < deadline, results
            time.sleep(0.2)
        assert client.get_scheduled_flow_runs_for_work_pool(POOL) == []
        assert command.is_alive(), "a run is still active"
        client.set_flow_run_state(busy.id, Completed(), force=True)
        command.join(SECONDS)
        (result,) = results
        assert result.code == 0, result.err
        output = json.loads(result.out)
        assert (output["paused"], output["ended"]) == (True, ["busy"])
        assert f"prefect flow-run cancel ID ({busy.id})" in result.err.replace("\n", " ")

        assert drain(prefect, "--off").code == 0
        (waiting,) = client.get_scheduled_flow_runs_for_work_pool(POOL)
        assert waiting.flow_run.id == late.id

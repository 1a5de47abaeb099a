"""The pinned versions of Prefect work: the API accepts nulls, and a cron schedule fires at its minute.

With newer versions of fastapi or SQLAlchemy the server looks healthy and never makes a scheduled run. Only waiting
for one shows it, which takes up to 75 seconds.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.prefect_server import Server, client_environment
from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind, last_over
from tests.support.fakes.fake_runner import ingest
from tests.support.processes.prefect_server import credentials

pytestmark = pytest.mark.proof

ZONE = "Pacific/Kiritimati"  # 14 hours before UTC, so its day is mostly another one
FLOW = f"""
from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run
from prefect.schedules import Cron
from prefect.states import Completed

from infra.store.directory import DirectoryStore
from tasks.planning.next_run import due_span

@flow
def tick(scheduled_in: str = ""):
    store = DirectoryStore(Path(__file__).parent / "workspace")
    return Completed(message=due_span(store, flow_run.scheduled_start_time, scheduled_in))

if __name__ == "__main__":
    each_minute = Cron("* * * * *", timezone="{ZONE}", parameters={{"scheduled_in": "{ZONE}"}})
    tick.serve(name="each-minute", schedules=[each_minute], limit=1)
"""


ONLY_OURS = json.dumps({"deployments": {"name": {"any_": ["each-minute"]}}}).encode()


@pytest.fixture(scope="module")
def served(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny flow, served on a schedule by its own process; where its output goes."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "tick.py").write_text(FLOW)
    ingest(DirectoryStore(folder / "workspace"), "2026-11-20")
    output = folder / "output.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "tick.py"],
            cwd=folder,
            env={**os.environ, **client_environment(server)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield output
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads its own group, with the run's process in it
            process.wait()


def runs(server: Server) -> list[dict[str, Any]]:
    asked = {"Content-Type": "application/json"}
    found = httpx.post(f"{server.url}/flow_runs/filter", content=ONLY_OURS, headers=asked, auth=credentials(server))
    return found.raise_for_status().json()


def test_a_cron_schedule_fires_and_its_run_takes_the_span_of_its_zone(server: Server, served: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        done = [run for run in runs(server) if run["state_type"] == "COMPLETED"]
        if done:
            break
        time.sleep(0.5)
    else:
        states = [(run["name"], run["state_name"], run["expected_start_time"]) for run in runs(server)]
        pytest.fail(f"no scheduled run completed; runs: {states}; the serving process says:\n{served.read_text()}")
    assert done[0]["auto_scheduled"] is True
    scheduled = dt.datetime.fromisoformat(done[0]["expected_start_time"])
    assert scheduled.second == scheduled.microsecond == 0
    assert done[0]["state"]["message"] == last_over(scheduled, ZONE, SpanKind.day)


def test_the_api_accepts_the_nulls_of_its_own_client(server: Server, served: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "deployment", "ls"],
        cwd=served.parent,
        env={**os.environ, **client_environment(server), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "tick/each-minute" in done.stdout

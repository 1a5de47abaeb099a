"""The Batch emulator as a process: when it ends, nothing that it started is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cloud.batch import BatchServer
from tests.support.cloud.batch_client import BatchClient, until

ROOT = Path(__file__).resolve().parents[2]
# A child in a session of its own that ignores SIGTERM, as torchrun's workers can be.
FAMILY = (
    "import os, signal, subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); "
    "time.sleep(60)'], start_new_session=True); "
    "print(os.getpid(), child.pid, flush=True); "
)


@pytest.fixture
def own() -> Iterator[BatchClient]:
    """An emulator that a test may end."""
    server = BatchServer(grace_seconds=0.2, slots=3)
    server.register_all()
    yield BatchClient(server)
    server.stop()


def family(client: BatchClient, then: str, name: str = "job") -> list[int]:
    """Start a container with a child; their process ids."""
    job_id = client.submit("python", "-c", FAMILY + then, name=name)
    job = client.reaching(job_id, "RUNNING", "SUCCEEDED", "FAILED")
    return [int(pid) for pid in until(lambda: client.output(job))[0].split()]


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def gone(*pids: int) -> bool:
    return not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("end", ["finished", "terminated", "host lost"])
def test_all_of_a_container_ends_with_it(own: BatchClient, tmp_path: Path, end: str) -> None:
    gate = tmp_path / "gate"
    pids = family(own, f"exec(\"while not os.path.exists('{gate}'): time.sleep(0.02)\")")
    assert all(map(alive, pids))
    (job,) = own.server.jobs()
    if end == "terminated":
        own.batch.terminate_job(jobId=job["jobId"], reason="enough")
    elif end == "host lost":
        own.server.kill_host(job["jobId"])
    else:
        gate.touch()
    own.finished(job["jobId"])
    assert gone(*pids), "once a job is over, nothing of it is left"


def test_nothing_outlives_an_emulator_that_stops(own: BatchClient) -> None:
    pids = family(own, "time.sleep(60)")
    own.server.stop()
    assert gone(own.server.pid, *pids)


def test_nothing_outlives_an_emulator_that_is_killed(own: BatchClient) -> None:
    pids = family(own, "time.sleep(60)")
    os.kill(own.server.pid, signal.SIGKILL)
    until(lambda: gone(*pids))


def test_sigterm_stops_the_emulator() -> None:
    command = [sys.executable, "-m", "tests.emulator.engine"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert "url" in json.loads(process.stdout.readline())
        process.terminate()
        assert process.wait(20) == 0


def test_other_processes_are_left_alone(own: BatchClient) -> None:
    with subprocess.Popen(["sleep", "60"]) as bystander:
        family(own, "time.sleep(60)")
        own.server.stop()
        assert alive(bystander.pid)
        bystander.kill()


def test_no_more_containers_than_slots(own: BatchClient) -> None:
    jobs = [own.submit("sleep", "0.1", name="many") for _ in range(7)]
    nodes = own.submit_nodes(2, "sleep 0.1", name="many")
    assert {own.finished(job_id)["status"] for job_id in [*jobs, nodes]} == {"SUCCEEDED"}
    assert own.server.max_live_containers() == 3

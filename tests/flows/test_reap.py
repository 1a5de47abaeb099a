"""Jobs without a waiting process, on the emulator of AWS Batch, with flow runs on a real Prefect server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelled, Completed, Crashed, Running

from flows.orchestration.cancelling import end_jobs
from flows.reap import reap
from infra.compute.batch.claim import Claim, make_claim, read_claim
from infra.compute.batch.end_jobs import Reaped, ReapReport
from infra.compute.batch.job import tag_value
from infra.store.directory import DirectoryStore
from infra.store.lease import Lease
from tasks.foundation.errors import not_utf8
from tests.support.cloud.batch import ACCELERATOR_QUEUE, BatchServer
from tests.support.processes import forked
from tests.support.processes.prefect_server import PrefectServer

ROOT = Path(__file__).resolve().parents[2]
ENCODER = ("model.scratch.layers=1", "compute=batch")
ALL = ("--set", "compute=batch", "--grace-minutes", "0", "--json")


@flow
def some_pipeline() -> None: ...


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchServer]:
    server = BatchServer(grace_seconds=1.0)
    server.register_all(GpuType="p4d.24xlarge")
    for service in ("BATCH", "CLOUDWATCH_LOGS"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", server.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield server
    server.stop()


def flow_run(state: State[Any]) -> FlowRun:
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(some_pipeline, name="2021-Q1", state=Running())
        if state.name != "Running":
            client.set_flow_run_state(run.id, state, force=True)
        return client.read_flow_run(run.id)


def submit(
    store: DirectoryStore, attempt: int, run: str = "", waits_until: float | None = None, queue: str = ACCELERATOR_QUEUE
) -> str:
    """A sleeping job, submitted as the runner does; `waits_until` is the end of a waiter's lease."""
    prefix = f"runs/aaaa/infer/attempt-{attempt}"
    name = f"millrace-infer-{attempt}"
    tags = {"millrace": "millrace", "millrace-run": "aaaa", "millrace-stage": "infer"}
    tags |= {"millrace-attempt": str(attempt), "millrace-workspace": tag_value(store.uri)} | (
        {"millrace-flow-run": run} if run else {}
    )
    identity = boto3.client("batch").submit_job(
        jobName=name,
        jobQueue=queue,
        shareIdentifier="millrace",
        jobDefinition="millrace-infer",
        tags=tags,
        containerOverrides={"command": ["sleep", "600"]},
    )["jobId"]
    claim = Claim(name=name, state="submitted", job_id=identity, queue=queue, flow_run=run, claimed_at="now")
    assert make_claim(store, prefix, claim)
    if waits_until is not None:
        lease = Lease(owner="o", host="h", pid=1, expires_at=waits_until)
        store.write(f"{prefix}/waiter.json", lease.to_json())
    return str(identity)


def settled(batch: BatchServer) -> dict[str, str]:
    """State by job, once every terminated job has ended."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        jobs = batch.jobs()
        asked = [job for job in jobs if job.get("isTerminated") and job["status"] == "RUNNING"]
        if not asked and all(job["status"] in ("RUNNABLE", "RUNNING", "FAILED") for job in jobs):
            return {job["jobId"]: job["status"] for job in jobs}
        time.sleep(0.1)
    pytest.fail("the jobs did not settle")


def reaped(store: DirectoryStore, grace_minutes: float = 15.0, *overrides: str) -> dict[str, Reaped]:
    return {one.job: one for one in reap(store.uri, None, (*ENCODER, *overrides), grace_minutes).jobs}


def test_jobs_of_finished_runs_end_and_jobs_that_may_be_found_again_stay(
    prefect: PrefectServer, store: DirectoryStore, batch: BatchServer
) -> None:
    now = time.time()
    running, crashed = str(flow_run(Running()).id), str(flow_run(Crashed()).id)
    ended = {
        submit(store, 1, str(flow_run(Cancelled()).id), now - 1): "its flow run 2021-Q1 is Cancelled",
        submit(store, 2, str(flow_run(Completed()).id), now - 1): "its flow run 2021-Q1 is Completed",
    }
    kept = {
        submit(store, 3, running, now + 50): "a process waits for it",
        submit(store, 4, str(flow_run(Cancelled()).id), now + 50): "a process waits for it",
        submit(store, 5, running, now - 60): "no process has waited for it for 0 minutes: it may be run again",
        submit(store, 6, crashed, now - 60): "no process has waited for it for 0 minutes, and its flow run 2021-Q1 is "
        "Crashed: it may be run again",
        submit(store, 7, str(uuid4())): "no process has waited for it for 0 minutes: it may be run again",
    }
    found = reaped(store)
    assert {job: (one.action, one.why) for job, one in found.items()} == {
        **{job: ("ended", why) for job, why in ended.items()},
        **{job: ("kept", why) for job, why in kept.items()},
    }
    states = settled(batch)
    assert {job for job, state in states.items() if state == "FAILED"} == set(ended)
    claim = read_claim(store, "runs/aaaa/infer/attempt-1")
    assert claim is not None
    assert claim.state == "ending"
    later = reaped(store, 0.0)
    assert {job for job, one in later.items() if one.action == "ended"} == set(list(kept)[2:])
    settled(batch)
    assert set(reaped(store, 0.0)) == set(list(kept)[:2])


@pytest.mark.parametrize("name", ["shop, Köln", "long" * 60])
def test_a_workspace_that_no_tag_can_hold_keeps_the_jobs_that_are_waited_for(
    prefect: PrefectServer, tmp_path: Path, batch: BatchServer, name: str
) -> None:
    if not_utf8(tmp_path / name):
        pytest.skip("in this locale such a workspace is refused")
    with prefect.in_use():
        store = DirectoryStore(tmp_path / name / "w")
        waited, silent = submit(store, 1, waits_until=time.time() + 50), submit(store, 2)
        other = submit(DirectoryStore(tmp_path / "other"), 3)
        found = reaped(store, 0.0)
        assert {job: one.action for job, one in found.items()} == {waited: "kept", silent: "ended", other: "kept"}
        assert "belongs to another workspace" in found[other].why


def test_jobs_on_the_queue_with_gpus_end_too(prefect: PrefectServer, store: DirectoryStore, batch: BatchServer) -> None:
    job = submit(store, 1, queue="millrace-gpu")
    assert job not in reaped(store, 0.0)
    machines = "{queue: millrace-gpu, definition: 'g-{stage}', processes_per_node: 8, instance: p4d.24xlarge}"
    assert reaped(store, 0.0, f"batch.cuda={machines}")[job].action == "ended"


def test_a_job_with_an_unreadable_lease_does_not_stop_the_others(
    prefect: PrefectServer, store: DirectoryStore, batch: BatchServer
) -> None:
    bad = submit(store, 1)
    store.write("runs/aaaa/infer/attempt-1/waiter.json", b"{")
    good = submit(store, 2)
    found = reaped(store, 0.0)
    assert found[good].action == "ended"
    assert found[bad].action == "failed"
    assert "attempt-1/waiter.json" in found[bad].why


def test_the_hook_of_a_cancelled_flow_run_ends_its_jobs_and_no_others(
    prefect: PrefectServer, store: DirectoryStore, batch: BatchServer
) -> None:
    cancelled = flow_run(Cancelled())
    mine, other = submit(store, 1, str(cancelled.id)), submit(store, 2, str(flow_run(Running()).id))
    cancelled.parameters = {"workspace": store.uri, "config_file": None, "overrides": list(ENCODER)}
    end_jobs(some_pipeline, cancelled, Cancelled())
    assert settled(batch) == {mine: "FAILED", other: "RUNNING"}
    cancelled.parameters["overrides"] = ["model.scratch.layers=1"]
    calls = len(batch.calls())
    end_jobs(some_pipeline, cancelled, Cancelled())
    assert len(batch.calls()) == calls, "where nothing runs on AWS Batch it is not asked"


def test_the_command_needs_no_prefect_server_and_can_be_tried_dry(
    tmp_path: Path, batch: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    job = submit(DirectoryStore(tmp_path / "w"), 1, str(uuid4()))

    def command(*options: str) -> Any:
        done = forked.millrace("reap", "--workspace", str(tmp_path / "w"), *ALL, *options, seconds=60)
        assert done.code == 0, done.err
        return ReapReport.model_validate_json(done.out).model_dump(mode="json")

    dry = command("--dry-run")
    assert [(one["job"], one["action"]) for one in dry["jobs"]] == [(job, "kept")]
    assert dry["jobs"][0]["why"].endswith("; would be ended")
    assert settled(batch) == {job: "RUNNING"}
    assert [one["action"] for one in command()["jobs"]] == ["ended"]
    assert settled(batch) == {job: "FAILED"}
    assert not (tmp_path / "home" / "server.json").exists()
    calls = len(batch.calls())
    assert command("--set", "compute=local")["jobs"] == []
    assert len(batch.calls()) == calls, "where nothing runs on AWS Batch it is not asked"

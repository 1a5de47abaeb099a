"""How jobs of the Batch emulator are ended from outside: terminated, out of time."""

from __future__ import annotations

import pytest

from tests.support.cloud.batch_client import BatchClient

POLITE = "trap 'echo asked; exit 9' TERM; echo ready; while :; do sleep 0.02; done"
DEAF = "trap '' TERM; echo ready; while :; do sleep 0.02; done"
TWICE = {"attempts": 2}


@pytest.mark.parametrize(("script", "code", "lines"), [(POLITE, 9, ["ready", "asked"]), (DEAF, 137, ["ready"])])
def test_terminate_sends_sigterm_then_sigkill(client: BatchClient, script: str, code: int, lines: list[str]) -> None:
    job_id = client.submit("sh", "-c", script, retryStrategy=TWICE)
    client.said(job_id, "ready")
    client.batch.terminate_job(jobId=job_id, reason="enough")
    job = client.finished(job_id)
    (attempt,) = job["attempts"]
    assert (job["status"], job["isTerminated"], job["isCancelled"]) == ("FAILED", True, False)
    assert (job["statusReason"], attempt["container"]["exitCode"]) == ("enough", code)
    assert client.output(job) == lines


def test_the_main_process_alone_gets_the_signal(client: BatchClient) -> None:
    """As with docker stop."""
    child = "trap 'echo child asked' TERM; echo ready; while :; do sleep 0.02; done"
    job_id = client.submit("sh", "-c", f'trap "sleep 0.1; exit 0" TERM; sh -c "{child}" & wait')
    client.said(job_id, "ready")
    client.batch.terminate_job(jobId=job_id, reason="enough")
    said = client.output(client.finished(job_id))
    assert said[0] == "ready"
    assert "child asked" not in said  # the shell may still print that its child was killed


def test_terminating_an_ended_job_changes_nothing(client: BatchClient) -> None:
    job_id = client.submit("true")
    before = client.finished(job_id)
    client.batch.terminate_job(jobId=job_id, reason="too late")
    assert client.describe(job_id) == before


def test_terminating_a_waiting_job_cancels_it(client: BatchClient) -> None:
    client.server.hold_runnable()
    job_id = client.submit("true")
    client.reaching(job_id, "RUNNABLE")
    client.batch.terminate_job(jobId=job_id, reason="not needed")
    job = client.finished(job_id)
    assert (job["status"], job["statusReason"]) == ("FAILED", "not needed")
    assert (job["isCancelled"], job["isTerminated"], job["attempts"]) == (True, False, [])
    client.server.release_runnable()
    assert client.server.lives() == []


def test_a_starting_job_can_be_terminated(client: BatchClient) -> None:
    client.server.delay(starting=60)
    job_id = client.submit("true")
    client.reaching(job_id, "STARTING")
    client.batch.terminate_job(jobId=job_id, reason="enough")
    job = client.finished(job_id)
    assert (job["status"], job["isTerminated"], "exitCode" in job["container"]) == ("FAILED", True, False)


@pytest.mark.parametrize(("script", "code"), [(POLITE, 9), (DEAF, 137)])
def test_a_job_that_takes_too_long_is_ended(client: BatchClient, script: str, code: int) -> None:
    client.server.scale_timeouts(0.01)
    job_id = client.submit("sh", "-c", script, timeout={"attemptDurationSeconds": 60}, retryStrategy=TWICE)
    job = client.finished(job_id)
    (attempt,) = job["attempts"]
    assert (job["status"], attempt["container"]["exitCode"]) == ("FAILED", code)
    assert job["statusReason"] == "Job attempt duration exceeded timeout"
    assert job["isTerminated"] is False
    assert job["stoppedAt"] - job["startedAt"] >= 600
    assert job["timeout"] == {"attemptDurationSeconds": 60}


def test_a_job_within_its_time_is_not_ended(client: BatchClient) -> None:
    job = client.finished(client.submit("sleep", "0.3", timeout={"attemptDurationSeconds": 60}))
    assert job["status"] == "SUCCEEDED"

"""Array jobs of the Batch emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud.batch_client import BatchClient, until, wait_for

INDEX = "AWS_BATCH_JOB_ARRAY_INDEX"


def submit(client: BatchClient, size: int, script: str, **more: Any) -> str:
    return client.submit("sh", "-c", script, arrayProperties={"size": size}, **more)


def count(client: BatchClient, job_id: str, status: str) -> int:
    """How many children are in a status."""
    found: int = client.describe(job_id)["arrayProperties"]["statusSummary"][status]
    return found


def test_children_run_each_with_its_index(client: BatchClient) -> None:
    parent = client.finished(submit(client, 3, f"echo $AWS_BATCH_JOB_ID ${INDEX}"))
    assert parent["status"] == "SUCCEEDED"
    assert parent["arrayProperties"]["size"] == 3
    assert parent["arrayProperties"]["statusSummary"]["SUCCEEDED"] == 3
    assert sum(parent["arrayProperties"]["statusSummary"].values()) == 3
    assert parent["attempts"] == []
    for index in range(3):
        child = client.describe(f"{parent['jobId']}:{index}")
        assert client.output(child) == [f"{parent['jobId']}:{index} {index}"]
        assert child["arrayProperties"]["index"] == index


def test_the_parent_is_pending_while_children_run(client: BatchClient) -> None:
    job_id = submit(client, 2, "sleep 30")
    until(lambda: count(client, job_id, "RUNNING") == 2)
    parent = client.describe(job_id)
    assert (parent["status"], "startedAt" in parent) == ("PENDING", False)


def test_one_failed_child_fails_the_parent_once_all_have_ended(client: BatchClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = submit(client, 3, f"test ${INDEX} != 0 || exit 4; {wait_for(gate)}")
    until(lambda: count(client, job_id, "FAILED"))
    assert client.describe(job_id)["status"] == "PENDING"
    gate.touch()
    parent = client.finished(job_id)
    assert parent["status"] == "FAILED"
    summary = parent["arrayProperties"]["statusSummary"]
    assert (summary["FAILED"], summary["SUCCEEDED"]) == (1, 2)
    assert client.describe(f"{job_id}:0")["container"]["exitCode"] == 4


def test_each_child_is_tried_again_by_itself(client: BatchClient) -> None:
    script = f"test ${INDEX} = 0 || test $AWS_BATCH_JOB_ATTEMPT = 2"
    job_id = submit(client, 2, script, retryStrategy={"attempts": 2})
    assert client.finished(job_id)["status"] == "SUCCEEDED"
    assert [len(client.describe(f"{job_id}:{index}")["attempts"]) for index in (0, 1)] == [1, 2]


def test_terminating_the_parent_ends_all_children(client: BatchClient) -> None:
    job_id = submit(client, 3, "sleep 30")
    until(lambda: count(client, job_id, "RUNNING") == 3)
    client.batch.terminate_job(jobId=job_id, reason="enough")
    parent = client.finished(job_id)
    assert (parent["status"], parent["isTerminated"], parent["statusReason"]) == ("FAILED", True, "enough")
    assert all(client.describe(f"{job_id}:{index}")["isTerminated"] for index in range(3))


@pytest.mark.parametrize("size", [0, 1, 10_001])
def test_wrong_array_sizes_are_refused(client: BatchClient, size: int) -> None:
    with pytest.raises(client.batch.exceptions.ClientException, match="between 2 and 10000"):
        submit(client, size, "true")


def test_ten_thousand_children_are_queued_and_ended(client: BatchClient) -> None:
    client.server.hold_runnable()
    job_id = submit(client, 10_000, "true")
    until(lambda: client.describe(job_id)["arrayProperties"]["statusSummary"]["RUNNABLE"] == 10_000)
    client.batch.terminate_job(jobId=job_id, reason="not needed")
    assert client.finished(job_id)["arrayProperties"]["statusSummary"]["FAILED"] == 10_000

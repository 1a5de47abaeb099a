"""Array jobs of the Batch emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud.batch_client import BatchClient, until, wait_for

INDEX = "AWS_BATCH_JOB_ARRAY_INDEX"


def submit(client: BatchClient, size: int, script: str, **more: Any) -> str:
    return client.submit("sh", "-c", script, arrayProperties={"size": size}, **more)


def children(client: BatchClient, job_id: str, status: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.batch.list_jobs(arrayJobId=job_id, jobStatus=status)["jobSummaryList"]
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
    until(lambda: len(children(client, job_id, "RUNNING")) == 2)
    parent = client.describe(job_id)
    assert (parent["status"], "startedAt" in parent) == ("PENDING", False)
    assert parent["arrayProperties"]["statusSummary"]["RUNNING"] == 2


def test_one_child_that_fails_fails_the_parent_when_all_are_over(client: BatchClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = submit(client, 3, f"test ${INDEX} != 0 || exit 4; {wait_for(gate)}")
    until(lambda: children(client, job_id, "FAILED"))
    assert client.describe(job_id)["status"] == "PENDING"
    gate.touch()
    parent = client.finished(job_id)
    assert parent["status"] == "FAILED"
    summary = parent["arrayProperties"]["statusSummary"]
    assert (summary["FAILED"], summary["SUCCEEDED"]) == (1, 2)
    (failed,) = children(client, job_id, "FAILED")
    assert (failed["jobId"], failed["container"]["exitCode"]) == (f"{job_id}:0", 4)
    assert failed["arrayProperties"]["index"] == 0


def test_each_child_is_tried_again_by_itself(client: BatchClient) -> None:
    script = f"test ${INDEX} = 0 || test $AWS_BATCH_JOB_ATTEMPT = 2"
    job_id = submit(client, 2, script, retryStrategy={"attempts": 2})
    assert client.finished(job_id)["status"] == "SUCCEEDED"
    assert [len(client.describe(f"{job_id}:{index}")["attempts"]) for index in (0, 1)] == [1, 2]


def test_terminating_the_parent_ends_all_children(client: BatchClient) -> None:
    job_id = submit(client, 3, "sleep 30")
    until(lambda: len(children(client, job_id, "RUNNING")) == 3)
    client.batch.terminate_job(jobId=job_id, reason="enough")
    parent = client.finished(job_id)
    assert (parent["status"], parent["isTerminated"], parent["statusReason"]) == ("FAILED", True, "enough")
    assert all(client.describe(f"{job_id}:{index}")["isTerminated"] for index in range(3))


def test_terminating_one_child_leaves_the_others(client: BatchClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = submit(client, 2, wait_for(gate))
    until(lambda: len(children(client, job_id, "RUNNING")) == 2)
    client.batch.terminate_job(jobId=f"{job_id}:0", reason="enough")
    client.finished(f"{job_id}:0")
    gate.touch()
    assert client.finished(job_id)["isTerminated"] is False
    assert [client.describe(f"{job_id}:{index}")["status"] for index in (0, 1)] == ["FAILED", "SUCCEEDED"]


@pytest.mark.parametrize("size", [0, 1, 10_001])
def test_sizes_that_are_refused(client: BatchClient, size: int) -> None:
    with pytest.raises(client.batch.exceptions.ClientException, match="between 2 and 10000"):
        submit(client, size, "true")


def test_ten_thousand_children(client: BatchClient) -> None:
    client.server.hold_runnable()
    job_id = submit(client, 10_000, "true")
    until(lambda: client.describe(job_id)["arrayProperties"]["statusSummary"]["RUNNABLE"] == 10_000)
    client.batch.cancel_job(jobId=job_id, reason="not needed")
    assert client.finished(job_id)["arrayProperties"]["statusSummary"]["FAILED"] == 10_000


def test_children_are_listed_page_by_page(client: BatchClient) -> None:
    client.server.hold_runnable()
    job_id = submit(client, 7, "true")
    until(lambda: len(children(client, job_id, "RUNNABLE")) == 7)
    pages = client.batch.get_paginator("list_jobs").paginate(
        arrayJobId=job_id, jobStatus="RUNNABLE", PaginationConfig={"PageSize": 3}
    )
    listed = [[one["arrayProperties"]["index"] for one in page["jobSummaryList"]] for page in pages]
    assert listed == [[0, 1, 2], [3, 4, 5], [6]]
    assert client.batch.list_jobs(arrayJobId=job_id)["jobSummaryList"] == [], "without a status: the running"


def test_child_by_child_dependencies(client: BatchClient) -> None:
    first = submit(client, 2, f"test ${INDEX} = 0")
    second = submit(client, 2, "true", dependsOn=[{"jobId": first, "type": "N_TO_N"}])
    assert client.finished(second)["status"] == "FAILED"
    assert [client.describe(f"{second}:{index}")["status"] for index in (0, 1)] == ["SUCCEEDED", "FAILED"]


def test_children_one_after_the_other(client: BatchClient) -> None:
    job_id = submit(client, 3, "sleep 0.02", dependsOn=[{"type": "SEQUENTIAL"}], name="row")
    assert client.finished(job_id)["status"] == "SUCCEEDED"
    assert client.server.max_live_containers("row") == 1
    assert [one.job for one in client.server.lives("row")] == [f"{job_id}:{index}" for index in range(3)]


def test_a_job_waits_for_a_whole_array(client: BatchClient) -> None:
    first = submit(client, 3, "sleep 0.05")
    second = client.finished(client.submit("true", dependsOn=[{"jobId": first}]))
    assert second["startedAt"] >= client.describe(first)["stoppedAt"]

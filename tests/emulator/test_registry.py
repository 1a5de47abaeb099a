"""Queues and job definitions of the Batch emulator, and what it refuses to take or to find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cloud.batch import ACCELERATOR_QUEUE, CPU_QUEUE, STAGES, BatchServer, definition
from tests.support.cloud.batch_client import BatchClient


@pytest.fixture
def own() -> Iterator[BatchClient]:
    """An emulator that other tests don't register anything with."""
    server = BatchServer()
    yield BatchClient(server)
    server.stop()


def register(client: BatchClient, which: str) -> None:
    """Another revision of `mine`, whose container prints `which`."""
    properties = definition("validate")["containerProperties"] | {"command": ["echo", which]}
    client.batch.register_job_definition(jobDefinitionName="mine", type="container", containerProperties=properties)


def run(client: BatchClient, name: str) -> list[str]:
    job_id = client.batch.submit_job(jobName="job", jobQueue=CPU_QUEUE, jobDefinition=name)["jobId"]
    return client.output(client.finished(job_id))


def test_the_queues_and_definitions_of_the_default_configuration_exist(own: BatchClient) -> None:
    own.server.register_all()
    queues = {one["jobQueueName"]: one for one in own.batch.describe_job_queues()["jobQueues"]}
    assert set(queues) == {CPU_QUEUE, ACCELERATOR_QUEUE}
    assert "schedulingPolicyArn" not in queues[CPU_QUEUE]
    assert queues[ACCELERATOR_QUEUE]["schedulingPolicyArn"].startswith("arn:aws:batch:")
    found = own.batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"]
    assert {one["jobDefinitionName"]: one["type"] for one in found} == {
        f"millrace-{stage}": "multinode" if stage in ("health", "warmup", "train", "evaluate") else "container"
        for stage in STAGES
    }


def test_a_definition_without_a_revision_is_the_newest(own: BatchClient) -> None:
    own.server.register_all([])
    for which in ("first", "second"):
        register(own, which)
    assert [run(own, name) for name in ("mine", "mine:1", "mine:2")] == [["second"], ["first"], ["second"]]
    with pytest.raises(own.batch.exceptions.ClientException, match="not found or not in ACTIVE"):
        run(own, "mine:3")
    described = own.batch.describe_job_definitions(jobDefinitionName="mine", status="ACTIVE")["jobDefinitions"]
    assert [one["revision"] for one in described] == [2, 1]


def test_a_disabled_queue_takes_no_jobs(own: BatchClient) -> None:
    register(own, "x")
    queue = {"jobQueueName": "closed", "priority": 1, "state": "DISABLED", "computeEnvironmentOrder": []}
    arn = own.batch.create_job_queue(**queue)["jobQueueArn"]
    (described,) = own.batch.describe_job_queues(jobQueues=[arn])["jobQueues"]
    assert (described["state"], described["status"]) == ("DISABLED", "VALID")
    with pytest.raises(own.batch.exceptions.ClientException, match="not enabled"):
        own.batch.submit_job(jobName="job", jobQueue=arn, jobDefinition="mine")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"jobName": "no spaces"}, "Job name"),
        ({"jobName": "x" * 129}, "Job name"),
        ({"jobQueue": "nowhere"}, "JobQueue nowhere not found"),
        ({"jobDefinition": "nothing"}, "JobDefinition nothing not found"),
        ({"jobQueue": ACCELERATOR_QUEUE}, "shareIdentifier must be specified"),
        ({"shareIdentifier": "a"}, "shareIdentifier can't be specified"),
        ({"jobQueue": ACCELERATOR_QUEUE, "shareIdentifier": "a b"}, "letters, digits"),
        ({"timeout": {"attemptDurationSeconds": 59}}, "at least 60"),
        ({"retryStrategy": {"attempts": 11}}, "between 1 and 10"),
        ({"retryStrategy": {"evaluateOnExit": [{"onReason": "*", "action": "EXIT"}]}}, "attempts must be specified"),
        ({"retryStrategy": {"attempts": 2, "evaluateOnExit": [{"action": "EXIT"}]}}, "must have one of"),
        ({"retryStrategy": {"attempts": 2, "evaluateOnExit": [{"onReason": "*", "action": "STOP"}]}}, "RETRY or EXIT"),
        (
            {"retryStrategy": {"attempts": 2, "evaluateOnExit": [{"onReason": "*", "action": "EXIT"}] * 6}},
            "at most 5",
        ),
        (
            {"retryStrategy": {"attempts": 2, "evaluateOnExit": [{"onExitCode": "7?", "action": "EXIT"}]}},
            "not a valid pattern",
        ),
        ({"schedulingPriorityOverride": 10_000}, "between 0 and 9999"),
        ({"tags": {str(number): "" for number in range(51)}}, "at most 50 tags"),
    ],
)
def test_wrong_submissions_are_refused(client: BatchClient, changed: dict[str, Any], message: str) -> None:
    request = {"jobName": "job", "jobQueue": CPU_QUEUE, "jobDefinition": "millrace-validate", **changed}
    with pytest.raises(client.batch.exceptions.ClientException, match=message) as caught:
        client.batch.submit_job(**request)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert client.server.jobs() == []


def test_more_than_a_hundred_jobs_are_not_described(client: BatchClient) -> None:
    job_id = client.submit("true")
    assert len(client.batch.describe_jobs(jobs=[job_id, *["unknown"] * 99])["jobs"]) == 1
    with pytest.raises(client.batch.exceptions.ClientException, match="at most 100"):
        client.batch.describe_jobs(jobs=["unknown"] * 101)


def test_a_job_is_described_by_its_arn_too(client: BatchClient) -> None:
    job = client.finished(client.submit("true"))
    assert client.describe(job["jobArn"]) == job


def test_terminating_an_unknown_job_is_refused(client: BatchClient) -> None:
    with pytest.raises(client.batch.exceptions.ClientException, match="not found"):
        client.batch.terminate_job(jobId="unknown", reason="enough")


def listed(client: BatchClient, **request: Any) -> list[str]:
    pages = client.batch.get_paginator("list_jobs").paginate(
        jobQueue=CPU_QUEUE, PaginationConfig={"PageSize": 2}, **request
    )
    return [one["jobName"] for page in pages for one in page["jobSummaryList"]]


def test_jobs_are_listed_by_status(client: BatchClient) -> None:
    client.finished(client.submit("true", name="done"))
    client.finished(client.submit("false", name="failed"))
    for name in ("a", "b", "c"):
        client.reaching(client.submit("sleep", "30", name=name), "RUNNING")
    assert sorted(listed(client)) == ["a", "b", "c"], "without a status: the running"
    assert listed(client, jobStatus="SUCCEEDED") == ["done"]
    assert listed(client, jobStatus="FAILED") == ["failed"]


def test_jobs_are_listed_by_name_in_any_letters_and_status_newest_first(client: BatchClient) -> None:
    for name in ("train-1", "Train-1", "train-10"):
        client.submit("true", name=name)
    assert listed(client, filters=[{"name": "JOB_NAME", "values": ["TRAIN-1"]}]) == ["Train-1", "train-1"]
    assert listed(client, filters=[{"name": "JOB_NAME", "values": ["rain"]}]) == []


@pytest.mark.parametrize("request_", [{"jobQueue": CPU_QUEUE, "maxResults": 101}, {"jobQueue": "x"}])
def test_wrong_lists_are_refused(client: BatchClient, request_: dict[str, Any]) -> None:
    with pytest.raises(client.batch.exceptions.ClientException):
        client.batch.list_jobs(**request_)

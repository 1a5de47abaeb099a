"""Queues and job definitions of the Batch emulator, and what it refuses to take or to find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cloud.batch import ACCELERATOR_QUEUE, CPU_QUEUE, STAGES, BatchServer
from tests.support.cloud.batch_client import BatchClient

REQUIREMENTS = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "1"}]
CONTAINER = {"image": "none", "command": ["sh", "-c", "echo $WHICH"], "resourceRequirements": REQUIREMENTS}


@pytest.fixture
def own() -> Iterator[BatchClient]:
    """An emulator that other tests don't register anything with."""
    server = BatchServer()
    yield BatchClient(server)
    server.stop()


def register(client: BatchClient, which: str) -> str:
    properties = {**CONTAINER, "environment": [{"name": "WHICH", "value": which}]}
    reply = client.batch.register_job_definition(
        jobDefinitionName="mine", type="container", containerProperties=properties
    )
    return reply["jobDefinitionArn"]


def run(client: BatchClient, definition: str) -> list[str]:
    job_id = client.batch.submit_job(jobName="job", jobQueue=CPU_QUEUE, jobDefinition=definition)["jobId"]
    job = client.finished(job_id)
    assert ":job-definition/mine:" in job["jobDefinition"]
    return client.output(job)


def test_what_the_default_configuration_names_is_there(own: BatchClient) -> None:
    own.server.register_all()
    queues = {one["jobQueueName"]: one for one in own.batch.describe_job_queues()["jobQueues"]}
    assert set(queues) == {CPU_QUEUE, ACCELERATOR_QUEUE}
    assert "schedulingPolicyArn" not in queues[CPU_QUEUE]
    assert ":scheduling-policy/" in queues[ACCELERATOR_QUEUE]["schedulingPolicyArn"]
    found = own.batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"]
    assert {one["jobDefinitionName"]: one["type"] for one in found} == {
        f"millrace-{stage}": "multinode" if stage in ("health", "warmup", "train") else "container" for stage in STAGES
    }


def test_revisions(own: BatchClient) -> None:
    own.server.register_all([])
    first, second = register(own, "first"), register(own, "second")
    assert [run(own, name) for name in ("mine", "mine:1", first, second)] == [
        ["second"],
        ["first"],
        ["first"],
        ["second"],
    ]
    own.batch.deregister_job_definition(jobDefinition=second)
    assert run(own, "mine") == ["first"]
    with pytest.raises(own.batch.exceptions.ClientException, match="not found or not in ACTIVE"):
        run(own, "mine:2")
    own.batch.deregister_job_definition(jobDefinition="mine:1")
    with pytest.raises(own.batch.exceptions.ClientException, match="not found or not in ACTIVE"):
        run(own, "mine")
    described = own.batch.describe_job_definitions(jobDefinitionName="mine")["jobDefinitions"]
    assert [(one["revision"], one["status"]) for one in described] == [(2, "INACTIVE"), (1, "INACTIVE")]
    assert own.batch.describe_job_definitions(jobDefinitionName="mine", status="ACTIVE")["jobDefinitions"] == []
    assert register(own, "third").endswith("mine:3")


def test_a_definition_is_described_as_registered(own: BatchClient) -> None:
    given: dict[str, Any] = {
        "jobDefinitionName": "mine",
        "type": "multinode",
        "parameters": {"a": "b"},
        "nodeProperties": {
            "mainNode": 0,
            "numNodes": 2,
            "nodeRangeProperties": [{"targetNodes": "0:", "container": CONTAINER}],
        },
        "retryStrategy": {"attempts": 2, "evaluateOnExit": [{"onReason": "*", "action": "EXIT"}]},
        "timeout": {"attemptDurationSeconds": 60},
        "tags": {"of": "tests"},
    }
    own.batch.register_job_definition(**given)
    (described,) = own.batch.describe_job_definitions(jobDefinitions=["mine:1"])["jobDefinitions"]
    given["retryStrategy"]["evaluateOnExit"][0]["action"] = "exit"
    assert given.items() <= described.items()


def test_the_life_of_a_queue(own: BatchClient) -> None:
    policy = own.batch.create_scheduling_policy(name="fair")["arn"]
    order = [{"order": 1, "computeEnvironment": "any"}]
    queue = {"jobQueueName": "mine", "priority": 1, "computeEnvironmentOrder": order}
    arn = own.batch.create_job_queue(**queue, schedulingPolicyArn=policy)["jobQueueArn"]
    (described,) = own.batch.describe_job_queues(jobQueues=[arn])["jobQueues"]
    assert (described["state"], described["status"], described["schedulingPolicyArn"]) == ("ENABLED", "VALID", policy)
    register(own, "x")
    submission = {"jobName": "job", "jobQueue": arn, "jobDefinition": "mine", "shareIdentifier": "a"}
    job = own.finished(own.batch.submit_job(**submission)["jobId"])
    assert (job["jobQueue"], job["shareIdentifier"]) == (arn, "a")
    with pytest.raises(own.batch.exceptions.ClientException, match="DISABLED"):
        own.batch.delete_job_queue(jobQueue="mine")
    own.batch.update_job_queue(jobQueue="mine", state="DISABLED")
    with pytest.raises(own.batch.exceptions.ClientException, match="not enabled"):
        own.batch.submit_job(**submission)
    own.batch.delete_job_queue(jobQueue="mine")
    assert own.batch.describe_job_queues(jobQueues=["mine"])["jobQueues"] == []
    with pytest.raises(own.batch.exceptions.ClientException, match="not found"):
        own.batch.submit_job(**submission)


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
        ({"dependsOn": [{"jobId": "unknown"}]}, "unknown in dependsOn"),
        ({"schedulingPriorityOverride": 10_000}, "between 0 and 9999"),
        ({"containerOverrides": {"environment": [{"name": "AWS_BATCH_X", "value": ""}]}}, "AWS_BATCH_X"),
        ({"tags": {str(number): "" for number in range(51)}}, "at most 50 tags"),
    ],
)
def test_submissions_that_are_refused(client: BatchClient, changed: dict[str, Any], message: str) -> None:
    request = {"jobName": "job", "jobQueue": CPU_QUEUE, "jobDefinition": "millrace-validate", **changed}
    with pytest.raises(client.batch.exceptions.ClientException, match=message) as caught:
        client.batch.submit_job(**request)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert client.server.jobs() == []


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({"type": "container"}, "containerProperties"),
        ({"type": "multinode"}, "nodeProperties"),
        ({"type": "container", "containerProperties": {"image": "none"}}, "VCPU and MEMORY"),
        ({"type": "container", "containerProperties": {"resourceRequirements": REQUIREMENTS}}, "image"),
        (
            {
                "type": "multinode",
                "nodeProperties": {
                    "mainNode": 0,
                    "numNodes": 3,
                    "nodeRangeProperties": [{"targetNodes": "0:1", "container": CONTAINER}],
                },
            },
            "account for all nodes",
        ),
    ],
)
def test_definitions_that_are_refused(client: BatchClient, definition: dict[str, Any], message: str) -> None:
    with pytest.raises(client.batch.exceptions.ClientException, match=message):
        client.batch.register_job_definition(jobDefinitionName="refused", **definition)


def test_more_than_a_hundred_jobs_are_not_described(client: BatchClient) -> None:
    job_id = client.submit("true")
    assert len(client.batch.describe_jobs(jobs=[job_id, *["unknown"] * 99])["jobs"]) == 1
    with pytest.raises(client.batch.exceptions.ClientException, match="at most 100"):
        client.batch.describe_jobs(jobs=["unknown"] * 101)


def test_a_job_is_described_by_its_arn_too(client: BatchClient) -> None:
    job = client.finished(client.submit("true"))
    assert client.describe(job["jobArn"]) == job


def test_terminating_an_unknown_job_is_refused(client: BatchClient) -> None:
    for operation in (client.batch.terminate_job, client.batch.cancel_job):
        with pytest.raises(client.batch.exceptions.ClientException, match="not found"):
            operation(jobId="unknown", reason="enough")


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


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["train-1"], ["train-1"]),
        (["TRAIN-*"], ["Train-2", "train-1", "train-10"]),
        (["train-1*"], ["train-1", "train-10"]),
        (["infer*", "train-2"], ["Train-2", "infer"]),
        (["rain*"], []),
    ],
)
def test_jobs_are_listed_by_name_whatever_their_status(
    client: BatchClient, values: list[str], names: list[str]
) -> None:
    for name in ("train-1", "Train-2", "train-10", "infer"):
        client.submit("true", name=name)
    assert sorted(listed(client, filters=[{"name": "JOB_NAME", "values": values}])) == names


def test_jobs_are_listed_newest_first_with_a_filter(client: BatchClient) -> None:
    for name in ("one", "two", "three"):
        client.submit("true", name=name)
    assert listed(client, filters=[{"name": "JOB_NAME", "values": ["*"]}]) == ["three", "two", "one"]


@pytest.mark.parametrize(
    "request_",
    [{}, {"jobQueue": CPU_QUEUE, "arrayJobId": "x"}, {"jobQueue": CPU_QUEUE, "maxResults": 101}, {"jobQueue": "x"}],
)
def test_lists_that_are_refused(client: BatchClient, request_: dict[str, Any]) -> None:
    with pytest.raises(client.batch.exceptions.ClientException):
        client.batch.list_jobs(**request_)

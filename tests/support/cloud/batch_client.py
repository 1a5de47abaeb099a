"""The emulator of AWS Batch as boto3 sees it. Every answer is checked with botocore's own model of the service."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import boto3.session
from botocore.config import Config
from botocore.model import OperationModel, Shape
from botocore.validate import ParamValidator

from tests.support.cloud.batch import ACCELERATOR_QUEUE, CPU_QUEUE, BatchServer

SECONDS = 20.0
T = TypeVar("T")
GROUP = "LogGroup"
MAIN = "test $AWS_BATCH_JOB_NODE_INDEX = $AWS_BATCH_JOB_MAIN_NODE_INDEX"  # for the shell: this is the main node


class BatchClient:
    """It sends each call once."""

    def __init__(self, server: BatchServer) -> None:
        self.server = server
        config = Config(retries={"total_max_attempts": 1, "mode": "standard"}, read_timeout=SECONDS)
        self.batch: Any = _session().client("batch", endpoint_url=server.url, config=config)
        self.logs: Any = _session().client("logs", endpoint_url=server.url, config=config)
        self.ec2: Any = _session().client("ec2", endpoint_url=f"{server.url}/ec2/", config=config)
        for client in (self.batch, self.logs):
            client.meta.events.register("before-parse", _check)

    def submit(self, *command: str, name: str = "job", stage: str = "validate", **more: Any) -> str:
        """A container job on the first-in-first-out queue; its id."""
        request = {"jobName": name, "jobQueue": CPU_QUEUE, "jobDefinition": f"millrace-{stage}"}
        overrides = {"containerOverrides": {"command": list(command)}}
        job_id: str = self.batch.submit_job(**{**request, **overrides, **more})["jobId"]
        return job_id

    def submit_nodes(self, count: int, script: str, name: str = "job", **more: Any) -> str:
        """A multi-node job whose nodes all run a shell script; its id."""
        overrides = {"targetNodes": "0:", "containerOverrides": {"command": ["sh", "-c", script]}}
        job_id: str = self.batch.submit_job(
            **{
                "jobName": name,
                "jobQueue": ACCELERATOR_QUEUE,
                "shareIdentifier": "tests",
                "jobDefinition": "millrace-train",
                "nodeOverrides": {"numNodes": count, "nodePropertyOverrides": [overrides]},
                **more,
            }
        )["jobId"]
        return job_id

    def describe(self, job_id: str) -> dict[str, Any]:
        (job,) = self.batch.describe_jobs(jobs=[job_id])["jobs"]
        return job

    def finished(self, job_id: str) -> dict[str, Any]:
        """A job as it is described once it is over."""
        return self.reaching(job_id, "SUCCEEDED", "FAILED")

    def reaching(self, job_id: str, *statuses: str) -> dict[str, Any]:
        """A job as it is described once it has come so far."""
        return until(lambda: next((job for job in [self.describe(job_id)] if job["status"] in statuses), None))

    def lines(self, stream: str) -> list[str]:
        reply = self.logs.get_log_events(logGroupName=GROUP, logStreamName=stream, startFromHead=True)
        return [event["message"] for event in reply["events"]]

    def output(self, job: dict[str, Any]) -> list[str]:
        """What the last container of a described job has said."""
        return self.lines(job["container"]["logStreamName"])

    def said(self, job_id: str, line: str) -> dict[str, Any]:
        """A job as it is described once its container has said this line."""

        def look() -> dict[str, Any] | None:
            job = self.describe(job_id)
            spoken = "logStreamName" in job["container"] and line in self.output(job)
            return job if spoken else None

        return until(look)


def until(look: Callable[[], T | None]) -> T:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, f"not seen within {SECONDS} s"
        time.sleep(0.01)
    return found


def wait_for(path: Path) -> str:
    """The shell's words for it."""
    return f"until test -e {path}; do sleep 0.02; done"


def meet(folder: Path, nodes: int) -> str:
    """A shell script for all nodes: the main one waits until all have come, in each try."""
    mine = f"{folder}/try-$AWS_BATCH_JOB_ATTEMPT"
    wait = f"until test $(ls {mine} | wc -l) = {nodes}; do sleep 0.02; done"
    return f"mkdir -p {mine}; touch {mine}/$AWS_BATCH_JOB_NODE_INDEX; {MAIN} && {{ {wait}; }}"


@functools.cache
def _session() -> boto3.session.Session:
    """One, because each reads the services' models again."""
    return boto3.session.Session(aws_access_key_id="none", aws_secret_access_key="none", region_name="us-east-1")


def _check(operation_model: OperationModel, response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] != 200 or operation_model.output_shape is None:
        return
    answer = json.loads(response_dict["body"])
    shape: Any = operation_model.output_shape
    name: Any = operation_model.name
    faults = ParamValidator().validate(answer, shape).generate_report().splitlines()
    # The model has startedAt as required; AWS leaves it out until a job has started.
    wrong = [line for line in faults if not line.endswith('"startedAt"')] + _unknown(answer, shape, name)
    assert not wrong, f"{name} answers what AWS would not: {wrong}"


def _unknown(value: Any, shape: Shape, path: str) -> list[str]:
    """What the service's model has no name for: botocore would drop it without a word."""
    kind: Any = shape
    if shape.type_name == "structure":
        strange = [f"{path}.{key} is unknown" for key in value if key not in kind.members]
        known = [(key, one, kind.members[key]) for key, one in value.items() if key in kind.members]
    elif shape.type_name == "list":
        strange, known = [], [(str(index), one, kind.member) for index, one in enumerate(value)]
    else:
        allowed = getattr(shape, "enum", []) if shape.name != "RetryAction" else []  # given in small letters
        return [f"{path} is {value!r}, not one of {allowed}"] if allowed and value not in allowed else []
    for key, one, member in known:
        strange += _unknown(one, member, f"{path}.{key}")
    return strange

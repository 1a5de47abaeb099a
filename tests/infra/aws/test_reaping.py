"""The reaper that the account runs by itself: on which schedule, over which queues, and what it may do."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

import pytest

from configs.load import load_config
from infra.compute.batch.job import queues_of
from tests.support.cloud.requests import definitions
from tests.support.cloud.template import made, resources, template

ROOT = Path(__file__).resolve().parents[3]
OTHERS = {"InferType": "inf2.xlarge", "GpuType": "p4d.24xlarge"}


def statements(role: str) -> list[dict[str, Any]]:
    (policy,) = resources("AWS::IAM::Role")[role]["Policies"]
    return policy["PolicyDocument"]["Statement"]


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def granted(role: str) -> set[str]:
    return {action for one in statements(role) for action in listed(one["Action"])}


@pytest.mark.parametrize("stack", [{}, OTHERS], ids=["plain", "others"])
def test_the_command_looks_at_all_queues_of_the_stack_and_at_its_workspace(stack: dict[str, str]) -> None:
    command = definitions(**stack)["millrace-reap"]["containerProperties"]["command"]
    assert command[:4] == ["millrace", "reap", "--workspace", "s3://Bucket/main"]
    assert set(command[4::2]) == {"--set"}
    config = load_config(None, command[5::2])
    queues = {one["JobQueueName"] for one in made("AWS::Batch::JobQueue", **stack).values()}
    assert set(queues_of(config.batch)) == queues - {"millrace-reap"}
    assert config.compute == "batch"


def test_it_is_submitted_every_quarter_of_an_hour_by_a_role_that_can_do_no_more() -> None:
    (rule,) = resources("AWS::Events::Rule").values()
    (target,) = rule["Targets"]
    assert rule["ScheduleExpression"] == "rate(15 minutes)"
    assert (target["Arn"], target["BatchParameters"]["JobDefinition"]) == (
        {"Ref": "ReapQueue"},
        {"Ref": "ReapDefinition"},
    )
    assert target["RoleArn"] == {"GetAtt": "ReapScheduleRole.Arn"}
    (only,) = statements("ReapScheduleRole")
    assert only["Action"] == "batch:SubmitJob"
    assert [one["Sub"].rpartition(":")[2] for one in only["Resource"]] == [
        "job-queue/${Name}-reap",
        "job-definition/${Name}-reap*",
    ]


def test_it_keeps_no_machine() -> None:
    (order,) = resources("AWS::Batch::JobQueue")["ReapQueue"]["ComputeEnvironmentOrder"]
    environment = template()["Resources"][order["ComputeEnvironment"]["Ref"]]["Properties"]
    assert environment["ComputeResources"]["Type"] == "FARGATE"
    assert definitions()["millrace-reap"]["platformCapabilities"] == ["FARGATE"]


@pytest.mark.shows("least privilege")
def test_it_may_read_the_workspace_change_claims_and_end_the_stacks_jobs() -> None:
    read = (ROOT / "infra/compute/batch/end_jobs.py").read_text()
    assert set(re.findall(r"api\.(\w+)\(", read)) >= {"live", "terminate"}
    assert granted("ReapRole") == {
        *("s3:ListBucket", "s3:GetObject", "s3:PutObject"),
        *("batch:ListJobs", "batch:DescribeJobs", "batch:TerminateJob"),
    }
    (ends,) = (one for one in statements("ReapRole") if one["Action"] == "batch:TerminateJob")
    assert ends["Condition"] == {"Null": {"aws:ResourceTag/millrace": "false"}}
    (writes,) = (one for one in statements("ReapRole") if one["Action"] == "s3:PutObject")
    patterns = [one["Sub"].partition("${Workspace}/")[2] for one in writes["Resource"]]

    def may_write(key: str) -> bool:
        return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)

    assert may_write("runs/r/train/attempt-1/job.json")
    assert may_write("refreshes/r/infer/attempt-1/job.json")
    assert not may_write("runs/r/train/result.json")
    assert not may_write("releases/CURRENT")

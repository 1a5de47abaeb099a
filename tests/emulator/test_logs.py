"""The log streams of the Batch emulator's containers, as CloudWatch Logs gives them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud.batch_client import GROUP, BatchClient, until, wait_for


def read(client: BatchClient, stream: str, **more: Any) -> tuple[list[str], str, str]:
    reply = client.logs.get_log_events(logGroupName=GROUP, logStreamName=stream, **more)
    messages = [event["message"] for event in reply["events"]]
    return messages, reply["nextForwardToken"], reply["nextBackwardToken"]


@pytest.fixture
def stream(client: BatchClient) -> str:
    """A stream of 25 lines."""
    job = client.finished(client.submit("seq", "25"))
    return job["container"]["logStreamName"]


def test_forward_page_by_page(client: BatchClient, stream: str) -> None:
    pages, token = [], ""
    while True:
        going_on = {"nextToken": token} if token else {}
        lines, following, _ = read(client, stream, limit=10, startFromHead=True, **going_on)
        if following == token:
            break
        pages.append(lines)
        token = following
    assert lines == [], "at the end the token repeats"
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [line for page in pages for line in page] == [str(number) for number in range(1, 26)]


def test_backward_from_the_end(client: BatchClient, stream: str) -> None:
    lines, _, token = read(client, stream, limit=10)
    assert lines == [str(number) for number in range(16, 26)]
    lines, _, token = read(client, stream, limit=20, nextToken=token)
    assert lines == [str(number) for number in range(1, 16)]
    assert read(client, stream, nextToken=token) == ([], token.replace("b/", "f/"), token)


def test_a_token_goes_on_with_what_came_later(client: BatchClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = client.said(client.submit("sh", "-c", f"echo first; {wait_for(gate)}; echo second"), "first")
    name = job["container"]["logStreamName"]
    lines, token, _ = read(client, name, startFromHead=True)
    assert lines == ["first"]
    gate.touch()
    until(lambda: read(client, name, nextToken=token)[0] == ["second"])


def test_by_time(client: BatchClient, stream: str) -> None:
    reply = client.logs.get_log_events(logGroupName=GROUP, logStreamName=stream, startFromHead=True)
    last = reply["events"][-1]["timestamp"]
    assert read(client, stream, startTime=last + 1)[0] == []
    assert len(read(client, stream, endTime=last + 1)[0]) == 25


def test_what_is_no_line_of_text(client: BatchClient) -> None:
    job = client.finished(client.submit("printf", r"a\n\377b\n\nno end"))
    assert client.output(job) == ["a", "\ufffdb", "no end"]


def test_a_lot_of_output(client: BatchClient) -> None:
    job = client.finished(client.submit("seq", "100000"))
    lines, token, _ = read(client, job["container"]["logStreamName"], startFromHead=True)
    assert (len(lines), lines[-1]) == (10_000, "10000")
    assert read(client, job["container"]["logStreamName"])[0][-1] == "100000"
    assert read(client, job["container"]["logStreamName"], nextToken=token)[0][0] == "10001"


def test_streams_are_described(client: BatchClient, stream: str) -> None:
    client.finished(client.submit_nodes(1, "echo node"))
    found = client.logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix="millrace-validate/")["logStreams"]
    assert [one["logStreamName"] for one in found] == [stream]
    assert found[0]["firstEventTimestamp"] <= found[0]["lastEventTimestamp"]
    first = client.logs.describe_log_streams(logGroupName=GROUP, limit=1)
    rest = client.logs.describe_log_streams(logGroupName=GROUP, nextToken=first["nextToken"])
    assert len(first["logStreams"]) == len(rest["logStreams"]) == 1
    assert "nextToken" not in rest


@pytest.mark.parametrize(("group", "what"), [(GROUP, "stream"), ("/other", "group")])
def test_what_is_not_there(client: BatchClient, group: str, what: str) -> None:
    with pytest.raises(client.logs.exceptions.ResourceNotFoundException, match=f"log {what} does not exist"):
        client.logs.get_log_events(logGroupName=group, logStreamName="none")


def test_a_definition_can_name_group_and_prefix(client: BatchClient) -> None:
    properties = {
        "image": "none",
        "command": ["echo", "hello"],
        "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "1"}],
        "logConfiguration": {
            "logDriver": "awslogs",
            "options": {"awslogs-group": "/mine", "awslogs-stream-prefix": "some"},
        },
    }
    client.batch.register_job_definition(jobDefinitionName="logged", type="container", containerProperties=properties)
    request = {"jobName": "job", "jobQueue": "millrace-cpu", "jobDefinition": "logged"}
    job = client.finished(client.batch.submit_job(**request)["jobId"])
    name = job["container"]["logStreamName"]
    assert name.startswith("some/default/")
    reply = client.logs.get_log_events(logGroupName="/mine", logStreamName=name)
    assert [event["message"] for event in reply["events"]] == ["hello"]

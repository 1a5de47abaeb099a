"""The log streams of the Batch emulator's containers, read as from CloudWatch Logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud.batch_client import GROUP, BatchClient, until, wait_for


def read(client: BatchClient, stream: str, **more: Any) -> tuple[list[str], str]:
    reply = client.logs.get_log_events(logGroupName=GROUP, logStreamName=stream, **more)
    return [event["message"] for event in reply["events"]], reply["nextForwardToken"]


@pytest.fixture
def stream(client: BatchClient) -> str:
    """A stream of 25 lines."""
    job = client.finished(client.submit("seq", "25"))
    return job["container"]["logStreamName"]


def test_a_log_is_read_page_by_page(client: BatchClient, stream: str) -> None:
    pages, token = [], ""
    while True:
        going_on = {"nextToken": token} if token else {}
        lines, following = read(client, stream, limit=10, startFromHead=True, **going_on)
        if following == token:
            break
        pages.append(lines)
        token = following
    assert lines == [], "at the end the token repeats"
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [line for page in pages for line in page] == [str(number) for number in range(1, 26)]


def test_without_a_token_a_limit_gives_the_last_lines(client: BatchClient, stream: str) -> None:
    assert read(client, stream, limit=10)[0] == [str(number) for number in range(16, 26)]


def test_a_token_continues_with_later_lines(client: BatchClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = client.said(client.submit("sh", "-c", f"echo first; {wait_for(gate)}; echo second"), "first")
    name = job["container"]["logStreamName"]
    lines, token = read(client, name, startFromHead=True)
    assert lines == ["first"]
    gate.touch()
    until(lambda: read(client, name, nextToken=token)[0] == ["second"])


def test_empty_lines_and_bytes_that_are_no_text(client: BatchClient) -> None:
    job = client.finished(client.submit("printf", r"a\n\377b\n\nno end"))
    assert client.output(job) == ["a", "\ufffdb", "no end"]


def test_100000_lines_come_in_pages_of_10000(client: BatchClient) -> None:
    job = client.finished(client.submit("seq", "100000"))
    lines, token = read(client, job["container"]["logStreamName"], startFromHead=True)
    assert (len(lines), lines[-1]) == (10_000, "10000")
    assert read(client, job["container"]["logStreamName"])[0][-1] == "100000"
    assert read(client, job["container"]["logStreamName"], nextToken=token)[0][0] == "10001"


@pytest.mark.parametrize(("group", "what"), [(GROUP, "stream"), ("/other", "group")])
def test_a_missing_group_or_stream_is_refused(client: BatchClient, group: str, what: str) -> None:
    with pytest.raises(client.logs.exceptions.ResourceNotFoundException, match=f"log {what} does not exist"):
        client.logs.get_log_events(logGroupName=group, logStreamName="none")

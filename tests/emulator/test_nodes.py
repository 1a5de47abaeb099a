"""Multi-node jobs of the Batch emulator: the main node decides, the others start and end with it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud.batch_client import MAIN, BatchClient, meet, until, wait_for

SHOW = """python -c 'import os, json; print(json.dumps(dict(os.environ)))'"""


def node(client: BatchClient, job_id: str, index: int) -> dict[str, Any]:
    return client.describe(f"{job_id}#{index}")


def test_each_node_knows_its_place_and_the_main_nodes_address(client: BatchClient, tmp_path: Path) -> None:
    job_id = client.submit_nodes(3, f"{SHOW}; {meet(tmp_path, 3)}")
    assert client.finished(job_id)["status"] == "SUCCEEDED"
    environments = [json.loads(client.output(node(client, job_id, index))[0]) for index in range(3)]
    for index, environment in enumerate(environments):
        expected = {
            "AWS_BATCH_JOB_ID": f"{job_id}#{index}",
            "AWS_BATCH_JOB_NODE_INDEX": str(index),
            "AWS_BATCH_JOB_NUM_NODES": "3",
            "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
            "AWS_BATCH_JOB_ATTEMPT": "1",
        }
        assert expected.items() <= environment.items()
    addresses = [one.get("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS") for one in environments]
    (interface,) = node(client, job_id, 0)["container"]["networkInterfaces"]
    assert addresses == [None, interface["privateIpv4Address"], interface["privateIpv4Address"]]


@pytest.mark.shows("several nodes")
def test_nodes_reach_a_main_node_that_listens_for_all(client: BatchClient) -> None:
    serve = (
        "import socket, time; server = socket.create_server(('', 0)); print(server.getsockname()[1], flush=True); "
        "print(server.accept()[0].recv(9).decode(), flush=True)"
    )
    job_id = client.submit_nodes(2, f'{MAIN} && exec python -c "{serve}"; sleep 30')
    main = client.reaching(job_id, "RUNNING") and node(client, job_id, 0)
    port = until(lambda: client.output(main))[0]
    address = main["container"]["networkInterfaces"][0]["privateIpv4Address"]
    with socket.create_connection((address, int(port))) as connection:
        connection.send(b"hello")
    assert client.finished(job_id)["status"] == "SUCCEEDED"
    assert client.output(main)[1:] == ["hello"]


def test_the_main_node_starts_first(client: BatchClient) -> None:
    job_id = client.submit_nodes(4, f"{MAIN} && sleep 0.3 || sleep 30", name="four")
    job = client.finished(job_id)
    assert job["status"] == "SUCCEEDED"
    assert [one.node for one in client.server.lives("four")] == [0, 1, 2, 3]
    assert len({one.host for one in client.server.lives("four")}) == 4
    assert (client.server.max_live("four"), client.server.max_live_containers("four")) == (1, 4)


def test_the_other_nodes_wait_until_the_main_node_runs(client: BatchClient) -> None:
    client.server.delay(starting=0.3)
    job_id = client.submit_nodes(2, "sleep 30")
    job = client.reaching(job_id, "RUNNING")
    until(lambda: node(client, job_id, 1)["status"] == "RUNNING")
    main, other = (node(client, job_id, index)["startedAt"] for index in (0, 1))
    assert main == job["startedAt"] > job["createdAt"] + 290  # whole milliseconds, of a clock that may be set
    assert other > main + 290


def test_the_other_nodes_start_one_after_another(client: BatchClient) -> None:
    """As their machines and images come, up to the time that the main node waits for them."""
    client.server.delay(joining=0.6)
    job_id = client.submit_nodes(3, "sleep 30")
    until(lambda: node(client, job_id, 2)["status"] == "RUNNING")
    created = client.describe(job_id)["createdAt"]  # a busy machine may be late to note that the main node has started
    first, second, third = (node(client, job_id, index)["startedAt"] for index in range(3))
    assert second >= created + 290
    assert third >= created + 590
    assert first < second < third


def test_the_other_nodes_end_with_the_main_node(client: BatchClient, tmp_path: Path) -> None:
    traps = "trap 'exit 5' TERM; test $AWS_BATCH_JOB_NODE_INDEX = 1 || trap '' TERM"
    job_id = client.submit_nodes(3, f"{traps}; {meet(tmp_path, 3)} && exit 0; while :; do sleep 0.02; done")
    assert client.finished(job_id)["status"] == "SUCCEEDED"
    codes = [node(client, job_id, index)["container"]["exitCode"] for index in range(3)]
    assert codes == [0, 5, 137]
    assert [node(client, job_id, index)["status"] for index in range(3)] == ["SUCCEEDED", "FAILED", "FAILED"]


def test_the_main_node_alone_decides(client: BatchClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    failing_main = client.submit_nodes(2, f"{MAIN} && exit 3; exit 0")
    waiting = f"{MAIN} || exit 3; {wait_for(gate)}"
    failing_child = client.submit_nodes(2, waiting, retryStrategy={"attempts": 2})
    assert client.finished(failing_main)["status"] == "FAILED"
    until(lambda: node(client, failing_child, 1)["status"] == "FAILED")
    assert client.describe(failing_child)["status"] == "RUNNING", "a child that dies does nothing by itself"
    gate.touch()
    job = client.finished(failing_child)
    assert (job["status"], len(job["attempts"])) == ("SUCCEEDED", 1)


def test_all_nodes_are_tried_again_when_the_main_node_fails(client: BatchClient, tmp_path: Path) -> None:
    script = f"echo try $AWS_BATCH_JOB_ATTEMPT; {meet(tmp_path, 2)} || sleep 30; exit $((2 - AWS_BATCH_JOB_ATTEMPT))"
    job_id = client.submit_nodes(2, script, retryStrategy={"attempts": 3})
    job = client.finished(job_id)
    assert (job["status"], [one["container"]["exitCode"] for one in job["attempts"]]) == ("SUCCEEDED", [1, 0])
    for index in (0, 1):
        tries = node(client, job_id, index)["attempts"]
        assert [client.lines(one["container"]["logStreamName"]) for one in tries] == [["try 1"], ["try 2"]]


def test_the_attempts_of_a_job_are_those_of_its_main_node(client: BatchClient) -> None:
    job_id = client.submit_nodes(2, f"{MAIN}")
    assert client.finished(job_id)["attempts"] == node(client, job_id, 0)["attempts"]
    assert "container" not in client.describe(job_id)
    assert node(client, job_id, 1)["nodeDetails"] == {"nodeIndex": 1, "isMainNode": False}


def test_terminate_ends_all_nodes(client: BatchClient) -> None:
    job_id = client.submit_nodes(3, "sleep 30")
    until(lambda: node(client, job_id, 2)["status"] == "RUNNING")
    client.batch.terminate_job(jobId=job_id, reason="enough")
    job = client.finished(job_id)
    assert (job["status"], job["isTerminated"], job["statusReason"]) == ("FAILED", True, "enough")
    assert [node(client, job_id, index)["container"]["exitCode"] for index in range(3)] == [143] * 3


def test_the_timeout_is_for_the_whole_job(client: BatchClient) -> None:
    client.server.scale_timeouts(0.005)
    job_id = client.submit_nodes(2, "sleep 30", timeout={"attemptDurationSeconds": 60}, retryStrategy={"attempts": 2})
    job = client.finished(job_id)
    assert (job["statusReason"], len(job["attempts"])) == ("Job attempt duration exceeded timeout", 1)
    assert [node(client, job_id, index)["container"]["exitCode"] for index in (0, 1)] == [143, 143]


def test_a_job_of_nodes_is_listed_as_one(client: BatchClient) -> None:
    job_id = client.submit_nodes(3, "sleep 30")
    client.reaching(job_id, "RUNNING")
    (whole,) = client.batch.list_jobs(jobQueue="millrace-accelerator")["jobSummaryList"]
    assert (whole["jobId"], whole["nodeProperties"]["numNodes"]) == (job_id, 3)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"containerOverrides": {"command": ["true"]}}, "containerOverrides"),
        ({"arrayProperties": {"size": 2}}, "arrayProperties"),
        ({"nodeOverrides": {"numNodes": 0}}, "numNodes 0"),
        ({"nodeOverrides": {"nodePropertyOverrides": [{"targetNodes": "1:"}]}}, "'1:' is not emulated"),
    ],
)
def test_wrong_submissions_are_refused(client: BatchClient, request_: dict[str, Any], message: str) -> None:
    with pytest.raises(client.batch.exceptions.ClientException, match=message):
        client.submit_nodes(2, "true", **request_)


def test_node_overrides_are_for_multi_node_jobs(client: BatchClient) -> None:
    with pytest.raises(client.batch.exceptions.ClientException, match="nodeOverrides"):
        client.submit("true", nodeOverrides={"numNodes": 2})

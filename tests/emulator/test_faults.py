"""The faults that a test can ask of the Batch emulator."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from tests.support.cloud.batch import BatchServer
from tests.support.cloud.batch_client import MAIN, BatchClient, until, wait_for

ON_HOST_LOSS = {
    "attempts": 3,
    "evaluateOnExit": [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}],
}


def refusal(call: Callable[[], Any]) -> tuple[int, str]:
    """The HTTP status and the code of the error that a call ends in."""
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.response["ResponseMetadata"]["HTTPStatusCode"], caught.value.response["Error"]["Code"]


def test_throttling_ends_after_the_given_number_of_calls(client: BatchClient) -> None:
    client.server.throttle("DescribeJobs", times=2)
    throttled = [refusal(lambda: client.batch.describe_jobs(jobs=["x"])) for _ in range(2)]
    assert throttled == [(429, "TooManyRequestsException")] * 2
    assert client.batch.describe_jobs(jobs=["x"])["jobs"] == []
    client.server.throttle("GetLogEvents")
    client.batch.describe_jobs(jobs=["x"])  # another operation
    assert refusal(lambda: client.lines("x")) == (400, "ThrottlingException")


def test_a_failing_call_does_nothing(client: BatchClient) -> None:
    client.server.fail_calls("SubmitJob")
    assert refusal(lambda: client.submit("true")) == (500, "ServerException")
    assert client.server.jobs() == []


def test_a_call_with_a_lost_reply_takes_effect(client: BatchClient) -> None:
    client.server.lose_reply("SubmitJob")
    with pytest.raises(ConnectionClosedError):
        client.submit("true")
    assert len(client.server.jobs()) == 1
    assert [call["outcome"] for call in client.server.calls("SubmitJob")] == ["reply lost"]
    client.finished(client.submit("true"))


def test_credentials_are_refused_until_the_fault_is_removed(client: BatchClient) -> None:
    client.server.refuse_credentials()
    for call in (lambda: client.batch.describe_jobs(jobs=["x"]), lambda: client.lines("x")):
        assert refusal(call) == (403, "UnrecognizedClientException")
    client.server.forgive()
    assert client.batch.describe_jobs(jobs=["x"])["jobs"] == []


def test_only_the_denied_operation_is_refused(client: BatchClient) -> None:
    client.server.deny("TerminateJob")
    assert refusal(lambda: client.batch.terminate_job(jobId="x", reason="y")) == (403, "AccessDeniedException")
    assert client.batch.describe_jobs(jobs=["x"])["jobs"] == []


def test_a_hidden_job_is_shown_later(client: BatchClient) -> None:
    client.server.hide_jobs(0.6)
    submitted = time.monotonic()
    job_id = client.submit("true")
    filters = [{"name": "JOB_NAME", "values": ["job"]}]
    assert client.batch.describe_jobs(jobs=[job_id])["jobs"] == []
    assert client.batch.list_jobs(jobQueue="millrace-cpu", filters=filters)["jobSummaryList"] == []
    until(lambda: client.batch.describe_jobs(jobs=[job_id])["jobs"])
    assert time.monotonic() - submitted >= 0.6
    assert len(client.batch.list_jobs(jobQueue="millrace-cpu", filters=filters)["jobSummaryList"]) == 1


@pytest.mark.parametrize("held", [{"job": "stuck-*"}, {"queue": "millrace-cpu"}])
def test_jobs_stay_runnable_until_released(client: BatchClient, held: dict[str, str]) -> None:
    client.server.hold_runnable(**held)
    stuck = client.submit("true", name="stuck-1")
    free = client.submit_nodes(1, "true", name="free")
    assert client.finished(free)["status"] == "SUCCEEDED"
    assert client.describe(stuck)["status"] == "RUNNABLE"
    client.server.release_runnable()
    assert client.finished(stuck)["status"] == "SUCCEEDED"


def test_a_lost_host_fails_the_job(client: BatchClient) -> None:
    job_id = client.submit("sleep", "30")
    client.reaching(job_id, "RUNNING")
    (life,) = client.server.lives()
    client.server.kill_host(job_id)
    job = client.finished(job_id)
    (attempt,) = job["attempts"]
    assert (job["status"], job["statusReason"]) == ("FAILED", f"Host EC2 (instance {life.host}) terminated.")
    assert attempt["statusReason"] == job["statusReason"]
    assert not {"exitCode", "reason"} & attempt["container"].keys()


def test_after_a_lost_host_the_job_is_tried_on_another(client: BatchClient) -> None:
    script = "test $AWS_BATCH_JOB_ATTEMPT = 2 && exit 0; sleep 30"
    client.server.kill_host("again", after=0.1)
    job = client.finished(client.submit("sh", "-c", script, name="again", retryStrategy=ON_HOST_LOSS))
    assert (job["status"], [one["container"].get("exitCode") for one in job["attempts"]]) == ("SUCCEEDED", [None, 0])
    first, second = client.server.lives()
    assert first.host != second.host
    assert first.stopped is not None
    assert first.stopped - first.started >= 0.1
    third = client.finished(client.submit("true", name="next"))
    assert third["container"]["containerInstanceArn"] == job["container"]["containerInstanceArn"]


def test_a_machine_that_is_ended_shuts_down_and_gets_no_other_job(client: BatchClient) -> None:
    stays = "trap 'echo stopped; exit 70' TERM; echo up; while :; do sleep 0.02; done"
    script = f"test $AWS_BATCH_JOB_ATTEMPT = 2 && exit 0; {stays}"
    job_id = client.submit("sh", "-c", script, name="ended", retryStrategy=ON_HOST_LOSS)
    client.said(job_id, "up")
    (first,) = client.server.lives("ended")
    client.server.deny("TerminateInstances")
    assert refusal(lambda: client.ec2.terminate_instances(InstanceIds=[first.host])) == (403, "AccessDeniedException")
    client.server.forgive()
    (ended,) = client.ec2.terminate_instances(InstanceIds=[first.host])["TerminatingInstances"]
    assert (ended["InstanceId"], ended["CurrentState"]["Name"]) == (first.host, "shutting-down")
    job = client.finished(job_id)
    lost = job["attempts"][0]
    assert (job["status"], lost["statusReason"]) == ("SUCCEEDED", f"Host EC2 (instance {first.host}) terminated.")
    assert client.lines(lost["container"]["logStreamName"]) == ["up", "stopped"]
    client.finished(client.submit("true", name="next"))
    assert first.host not in {life.host for life in client.server.lives()[1:]}
    gone = refusal(lambda: client.ec2.terminate_instances(InstanceIds=[first.host]))
    assert gone == (400, "InvalidInstanceID.NotFound")


def test_a_host_is_lost_when_the_log_says_so(client: BatchClient) -> None:
    client.server.kill_host_when_log("counting", "step 3")
    script = "for i in 1 2 3; do echo step $i; done; sleep 30; echo step 4"
    job = client.finished(client.submit("sh", "-c", script, name="counting"))
    assert job["statusReason"].startswith("Host EC2 (instance i-")
    assert client.output(job) == ["step 1", "step 2", "step 3"]


def test_a_lost_host_of_one_node_kills_that_node_only(client: BatchClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    client.server.kill_host_when_log("nodes", "working", index=1)
    job_id = client.submit_nodes(2, f"{MAIN} || {{ echo working; sleep 30; }}; {wait_for(gate)}", name="nodes")
    child = until(lambda: next((one for one in [client.describe(f"{job_id}#1")] if one["status"] == "FAILED"), None))
    assert client.describe(job_id)["status"] == "RUNNING"
    assert child["statusReason"].startswith("Host EC2 (instance i-")
    assert "exitCode" not in child["container"]
    gate.touch()
    assert client.finished(job_id)["status"] == "SUCCEEDED"


def test_a_lost_host_of_the_main_node_fails_the_attempt(client: BatchClient) -> None:
    client.server.kill_host("nodes", index=0)
    script = "test $AWS_BATCH_JOB_ATTEMPT = 2 && exit 0; sleep 30"
    job = client.finished(client.submit_nodes(2, script, name="nodes", retryStrategy=ON_HOST_LOSS))
    assert (job["status"], len(job["attempts"])) == ("SUCCEEDED", 2)
    assert job["attempts"][0]["statusReason"].startswith("Host EC2")


def test_a_lost_host_of_one_child_of_an_array(client: BatchClient) -> None:
    client.server.kill_host("parts", index=1)
    job_id = client.submit("sleep", "0.2", name="parts", arrayProperties={"size": 3})
    assert client.finished(job_id)["arrayProperties"]["statusSummary"]["FAILED"] == 1
    assert client.describe(f"{job_id}:1")["statusReason"].startswith("Host EC2")


def test_a_failed_pull_is_tried_again(client: BatchClient) -> None:
    client.server.fail_pull("pulled", times=2)
    job = client.finished(client.submit("true", name="pulled", retryStrategy={"attempts": 3}))
    first, second, third = job["attempts"]
    assert first["container"]["reason"].startswith("CannotPullContainerError")
    assert not {"exitCode", "logStreamName"} & first["container"].keys()
    assert (second["container"]["reason"], third["container"]["exitCode"]) == (first["container"]["reason"], 0)
    assert len(client.server.lives("pulled")) == 1


def test_a_rule_on_the_reason_ends_the_tries_after_a_failed_pull(client: BatchClient) -> None:
    client.server.fail_pull("pulled", times=2)
    rules = [{"onReason": "CannotPullContainerError:*", "action": "EXIT"}]
    job_id = client.submit("true", name="pulled", retryStrategy={"attempts": 3, "evaluateOnExit": rules})
    assert len(client.finished(job_id)["attempts"]) == 1


def test_out_of_memory_kills_the_container(client: BatchClient) -> None:
    client.server.out_of_memory("greedy", text="allocating")
    job = client.finished(client.submit("sh", "-c", "echo allocating; sleep 30", name="greedy"))
    assert job["attempts"][0]["container"]["exitCode"] == 137
    assert job["container"]["reason"] == "OutOfMemoryError: Container killed due to memory usage"
    assert job["statusReason"] == "Essential container in task exited"


def test_scheduling_starting_and_logs_can_be_delayed(client: BatchClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    client.server.delay(scheduling=0.15, starting=0.15, logs=0.3)
    job_id = client.submit("sh", "-c", f"echo late; {wait_for(gate)}")
    job = client.reaching(job_id, "RUNNING")
    assert job["startedAt"] - job["createdAt"] >= 300
    until(lambda: client.output(job) == ["late"])
    assert time.time() * 1000 - job["startedAt"] >= 300
    gate.touch()
    client.finished(job_id)


def test_forget_ends_all_jobs_and_keeps_the_queues(client: BatchClient) -> None:
    client.server.throttle("DescribeJobs", times=None)
    client.server.delay(starting=60)
    client.submit("sleep", "30")
    client.server.forget()
    assert (client.server.jobs(), client.server.calls(), client.server.lives()) == ([], [], [])
    assert client.finished(client.submit("true"))["status"] == "SUCCEEDED"


def test_calls_are_recorded(client: BatchClient) -> None:
    before = time.time()
    client.submit("true", name="noted")
    client.batch.describe_jobs(jobs=["x"])
    (call,) = client.server.calls("SubmitJob")
    assert (call["outcome"], call["request"]["jobName"]) == ("ok", "noted")
    assert before <= call["at"] <= time.time()
    assert [one["operation"] for one in client.server.calls()] == ["SubmitJob", "DescribeJobs"]


def test_max_live_counts_jobs_of_one_name(client: BatchClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    at_once = [client.submit("sh", "-c", wait_for(gate), name="both") for _ in range(2)]
    for job_id in at_once:
        client.reaching(job_id, "RUNNING")
    gate.touch()
    for job_id in at_once:
        client.finished(job_id)
    for _ in range(2):
        client.finished(client.submit("true", name="one"))
    assert (client.server.max_live("both"), client.server.max_live("one")) == (2, 1)
    assert client.server.max_live("never") == 0


def metadata(server: BatchServer, path: str, method: str = "GET", token: str = "") -> str:
    request = urllib.request.Request(
        f"{server.url}/imds/{path}", method=method, headers={"X-aws-ec2-metadata-token": token}
    )
    with urllib.request.urlopen(request) as reply:
        return reply.read().decode()


def test_each_host_has_metadata_until_it_is_lost(client: BatchClient) -> None:
    script = (
        "import os, urllib.request as r; u = os.environ['AWS_EC2_METADATA_SERVICE_ENDPOINT']; "
        "t = r.urlopen(r.Request(u + 'latest/api/token', method='PUT')).read().decode(); "
        "h = {'X-aws-ec2-metadata-token': t}; "
        "print(r.urlopen(r.Request(u + 'latest/meta-data/instance-id', headers=h)).read().decode())"
    )
    job = client.finished(client.submit("python", "-c", script))
    (life,) = client.server.lives()
    assert client.output(job) == [life.host]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        metadata(client.server, f"{life.host}/latest/meta-data/instance-id")
    client.server.kill_host("lost")
    client.finished(client.submit("sleep", "30", name="lost"))
    with pytest.raises(urllib.error.HTTPError, match="404"):
        metadata(client.server, f"{life.host}/latest/api/token", method="PUT")


def test_an_unknown_fault_is_refused(client: BatchClient) -> None:
    with pytest.raises(AssertionError, match="no such fault"):
        client.server.control("faults", kind="earthquake")
    with pytest.raises(AssertionError, match="no such fault"):
        client.server.control("faults", kind="throttle", how="much")

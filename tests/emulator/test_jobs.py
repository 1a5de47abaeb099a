"""Containers of the Batch emulator: what they run, what they find, how they end, when they are tried again."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.cloud.batch import definition
from tests.support.cloud.batch_client import BatchClient, until, wait_for

ROOT = Path(__file__).resolve().parents[2]
SHOW = "import os, json; print(json.dumps([dict(os.environ), os.getcwd(), sorted(os.sched_getaffinity(0))]))"


def exit_with(code: int) -> tuple[str, ...]:
    return ("sh", "-c", f"exit {code}")


def fail_until(attempt: int, code: int) -> tuple[str, ...]:
    return ("sh", "-c", f"test $AWS_BATCH_JOB_ATTEMPT -ge {attempt} || exit {code}")


def test_a_job_that_succeeds(client: BatchClient) -> None:
    job = client.finished(client.submit("sh", "-c", "echo one; echo two >&2"))
    (attempt,) = job["attempts"]
    assert (job["status"], attempt["container"]["exitCode"]) == ("SUCCEEDED", 0)
    assert job["createdAt"] <= job["startedAt"] <= job["stoppedAt"]
    assert job["startedAt"] == attempt["startedAt"] <= attempt["stoppedAt"] <= job["stoppedAt"]
    assert attempt["statusReason"] == job["statusReason"] == "Essential container in task exited"
    assert "reason" not in attempt["container"]
    assert client.output(job) == ["one", "two"]
    assert attempt["container"]["logStreamName"].startswith("validate/default/")
    assert (job["isCancelled"], job["isTerminated"]) == (False, False)


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)])
def test_a_job_that_fails(client: BatchClient, script: str, code: int) -> None:
    job = client.finished(client.submit("sh", "-c", script))
    assert (job["status"], job["container"]["exitCode"]) == ("FAILED", code)


def test_a_job_without_its_program_does_not_start(client: BatchClient) -> None:
    job = client.finished(client.submit("no-such-program"))
    (attempt,) = job["attempts"]
    assert (job["status"], attempt["container"]["exitCode"]) == ("FAILED", 127)
    assert attempt["container"]["reason"].startswith("CannotStartContainerError")
    assert "startedAt" not in job


def test_a_container_has_the_environment_of_image_definition_and_batch_alone(client: BatchClient) -> None:
    """What the developer has set must not help: on AWS it is not there."""
    job = client.finished(client.submit("python", "-c", SHOW))
    environment, folder, _ = json.loads(client.output(job)[0])
    by_batch = {
        "AWS_BATCH_JOB_ID": job["jobId"],
        "AWS_BATCH_JQ_NAME": "millrace-cpu",
        "AWS_BATCH_CE_NAME": "emulator",
        "AWS_BATCH_JOB_ATTEMPT": "1",
    }
    by_the_image = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "FROM_THE_IMAGE": "added"}
    by_the_definition = {"AWS_DEFAULT_REGION": "us-east-1"}
    assert (by_batch | by_the_image | by_the_definition).items() <= environment.items()
    assert Path(folder) == ROOT
    theirs = ["PATH", "HOME", "TMPDIR", "AWS_EXECUTION_ENV", "AWS_ENDPOINT_URL", "AWS_CONTAINER_CREDENTIALS_FULL_URI"]
    theirs += [
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "AWS_ENDPOINT_URL_EC2",
        "PIP_NO_CACHE_DIR",
        "PIP_DISABLE_PIP_VERSION_CHECK",
    ]
    own = {"LC_CTYPE", "BATCH_EMULATOR_CONTAINER"}  # Python's, and the emulator's to find its processes
    of_the_machine = {"OPENBLAS_CORETYPE"} & {*os.environ}
    assert set(environment) == {*by_batch, *by_the_image, *by_the_definition, *theirs, *own, *of_the_machine}


def test_a_containers_own_files_go_with_it(client: BatchClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = client.submit("sh", "-c", f"touch $HOME/one $TMPDIR/two; echo $HOME $TMPDIR; {wait_for(gate)}")
    job = client.reaching(job_id, "RUNNING")
    folders = [Path(one) for one in until(lambda: client.output(job))[0].split()]
    assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [["one"], ["two"]]
    gate.touch()
    client.finished(job_id)
    assert not any(folder.exists() for folder in folders), "as those of a container that is over"


def test_an_attempt_is_listed_once_it_has_ended(client: BatchClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = client.submit("sh", "-c", wait_for(gate))
    job = client.reaching(job_id, "RUNNING")
    assert job["attempts"] == []
    assert {"logStreamName", "taskArn", "containerInstanceArn"} <= job["container"].keys()
    assert "exitCode" not in job["container"]
    gate.touch()
    (attempt,) = client.finished(job_id)["attempts"]
    assert attempt["container"]["taskArn"] == job["container"]["taskArn"]


def test_containers_use_the_python_of_the_tests(client: BatchClient) -> None:
    job = client.finished(client.submit("sh", "-c", "python -c 'import sys; print(sys.prefix)'"))
    direct = client.finished(client.submit("python", "-c", "import sys; print(sys.prefix)"))
    assert client.output(job) == client.output(direct) == [sys.prefix]


def test_containers_at_the_same_time_have_different_cores(client: BatchClient) -> None:
    machine = sorted(os.sched_getaffinity(0))
    script = f"{SHOW}; import time; time.sleep(30)"
    jobs = [client.submit("python", "-u", "-c", script) for _ in machine]
    bound = []
    for name in jobs:
        job = client.reaching(name, "RUNNING")
        while not (lines := client.output(job)):
            pass
        bound.append(json.loads(lines[0])[2])
    assert sorted(bound) == [[core] for core in machine]


def test_every_attempt_has_a_number_and_a_log(client: BatchClient) -> None:
    job_id = client.submit("sh", "-c", "echo try $AWS_BATCH_JOB_ATTEMPT; exit 70", retryStrategy={"attempts": 3})
    job = client.finished(job_id)
    assert job["status"] == "FAILED"
    assert [client.lines(one["container"]["logStreamName"]) for one in job["attempts"]] == [
        ["try 1"],
        ["try 2"],
        ["try 3"],
    ]
    assert job["retryStrategy"]["attempts"] == 3


def test_a_job_is_not_tried_again_unless_asked(client: BatchClient) -> None:
    assert len(client.finished(client.submit(*exit_with(1)))["attempts"]) == 1


def test_a_try_that_succeeds_is_the_last(client: BatchClient) -> None:
    job = client.finished(client.submit(*fail_until(2, 1), retryStrategy={"attempts": 5}))
    assert (job["status"], [one["container"]["exitCode"] for one in job["attempts"]]) == ("SUCCEEDED", [1, 0])


RETRY_70 = {"onExitCode": "70", "action": "RETRY"}
OTHERWISE_EXIT = {"onReason": "*", "action": "EXIT"}


@pytest.mark.parametrize(
    ("rules", "code", "tries"),
    [
        pytest.param([RETRY_70, OTHERWISE_EXIT], 70, 3, id="a rule that fits"),
        pytest.param([RETRY_70, OTHERWISE_EXIT], 71, 1, id="the last rule, for a reason that isn't there"),
        pytest.param([OTHERWISE_EXIT, RETRY_70], 70, 1, id="the first that fits counts"),
        pytest.param([{"onExitCode": "1", "action": "EXIT"}], 2, 3, id="none fits: tried again"),
        pytest.param([{"onExitCode": "7*", "action": "EXIT"}], 74, 1, id="the start of a number"),
        pytest.param([{"onExitCode": "7", "action": "EXIT"}], 74, 3, id="not the start of a number"),
        pytest.param([{"onStatusReason": "Essential*", "action": "exit"}], 1, 1, id="the status reason, small letters"),
        pytest.param([{"onStatusReason": "Essential", "action": "EXIT"}], 1, 3, id="not all of the status reason"),
        pytest.param(
            [{"onExitCode": "1", "onStatusReason": "Host EC2*", "action": "EXIT"}], 1, 3, id="both, or not at all"
        ),
    ],
)
def test_evaluate_on_exit(client: BatchClient, rules: list[dict[str, str]], code: int, tries: int) -> None:
    job_id = client.submit(*exit_with(code), retryStrategy={"attempts": 3, "evaluateOnExit": rules})
    job = client.finished(job_id)
    assert len(job["attempts"]) == tries
    assert [rule["action"] for rule in job["retryStrategy"]["evaluateOnExit"]] == [
        rule["action"].lower() for rule in rules
    ]


def test_tags_of_the_definition_are_propagated_on_request(client: BatchClient) -> None:
    tagged = definition("validate") | {"jobDefinitionName": "tagged", "tags": {"of": "definition", "team": "a"}}
    client.batch.register_job_definition(**tagged)
    request = {"jobDefinition": "tagged", "tags": {"team": "b"}}
    alone = client.submit("true", **request)
    both = client.submit("true", **request, propagateTags=True)
    assert client.finished(alone)["tags"] == {"team": "b"}
    job = client.finished(both)
    assert (job["tags"], job["propagateTags"]) == ({"of": "definition", "team": "b"}, True)

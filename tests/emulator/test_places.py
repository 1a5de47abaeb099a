"""Where the Batch emulator's containers run: as which user, on which machines, with whose credentials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.containers.places import user_named
from tests.support.cloud.batch import BatchServer, definition
from tests.support.cloud.batch_client import BatchClient, meet, wait_for

ROOT = Path(__file__).resolve().parents[2]
USER = "10001:10001"


@pytest.fixture
def own() -> Iterator[BatchClient]:
    """An emulator with machines as the stack has them by default, but two accelerators."""
    server = BatchServer(grace_seconds=0.2)
    server.register_all(AcceleratorNodes="2")
    yield BatchClient(server)
    server.stop()


@pytest.mark.skipif(user_named(USER) is None, reason="only root becomes another user, with a Python for everybody")
def test_a_container_is_another_user_and_cannot_write_to_the_code() -> None:
    imports = "import os, pydantic, tasks.foundation.errors as errors; print(os.getuid(), os.getgid(), os.getgroups())"
    tries = f"; print(os.access('{ROOT}', os.W_OK), os.access(os.environ['TMPDIR'], os.W_OK))"
    server = BatchServer(users=True)
    try:
        server.register_all()
        client = BatchClient(server)
        job = client.finished(client.submit("python", "-c", imports + tries))
        assert client.output(job) == ["10001 10001 []", "False True"]
    finally:
        server.stop()


def small(name: str, vcpus: int, **more: Any) -> dict[str, Any]:
    """A definition whose containers take so many vCPUs."""
    needs = [{"type": "VCPU", "value": str(vcpus)}, {"type": "MEMORY", "value": "1000"}]
    properties = definition("validate")["containerProperties"] | {"resourceRequirements": needs, "command": ["true"]}
    return {"jobDefinitionName": name, "type": "container", "containerProperties": properties | more}


def test_containers_share_a_machine_that_has_room_and_wait_where_all_are_taken(
    own: BatchClient, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    own.batch.register_job_definition(**small("small", 4))
    running = [own.submit("sh", "-c", wait_for(gate), jobDefinition="small") for _ in range(8)]
    for job_id in running:
        own.reaching(job_id, "RUNNING")
    waiting = own.submit("true", jobDefinition="small")
    hosts = [life.host for life in own.server.lives()]
    assert len(set(hosts)) == 4, "two on each of the machines that maxvCpus allows"
    assert own.reaching(waiting, "RUNNABLE", "STARTING", "RUNNING")["status"] == "RUNNABLE"
    gate.touch()
    own.finished(waiting)
    assert own.server.lives()[-1].host in hosts, "a machine that is there is used again"


def test_nodes_start_only_when_there_is_a_machine_for_each(own: BatchClient, tmp_path: Path) -> None:
    first, second = (own.submit_nodes(2, meet(tmp_path / name, 2), name=name) for name in ("first", "second"))
    assert {own.finished(one)["status"] for one in (first, second)} == {"SUCCEEDED"}
    assert own.server.max_live() == 1
    assert len({life.host for life in own.server.lives()}) == 2


@pytest.mark.parametrize(
    ("nodes", "vcpus", "why"),
    [(3, 96, "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE"), (1, 9, "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT")],
)
def test_a_job_that_no_machine_can_run_is_cancelled_by_its_queue(
    own: BatchClient, nodes: int, vcpus: int, why: str
) -> None:
    own.server.scale_timeouts(0.001)
    if nodes == 1:
        own.batch.register_job_definition(**small("large", vcpus))
        job_id = own.submit("true", jobDefinition="large")
    else:
        job_id = own.submit_nodes(nodes, "true")
    waiting = own.reaching(job_id, "RUNNABLE", "FAILED")
    assert waiting["statusReason"].startswith(f"{why} - ")
    job = own.finished(job_id)
    assert job["statusReason"] == f"Canceled by JobStateTimeLimit action due to reason: {why}"
    assert (job["isCancelled"], job["isTerminated"], job["attempts"]) == (False, False, [])


MANY = """
import collections, os, urllib.error, urllib.request

def ask():
    try:
        return urllib.request.urlopen(os.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"]).read().decode()
    except urllib.error.HTTPError as error:
        return error.code

answers = collections.Counter(ask() for _ in range(90))
print(*answers.values())
print(*answers, sep=os.linesep)
"""


def test_the_credentials_of_a_machine_are_given_sixty_times_at_once(client: BatchClient) -> None:
    job = client.finished(client.submit("python", "-c", MANY))
    counts, given, refused = client.output(job)
    assert int(counts.split()[0]) >= 60
    assert '"RoleArn": "arn:aws:iam:us-east-1:123456789012:ValidateRole"' in given
    assert refused == "429"
    assert sum(client.server.credential_requests().values()) == 90

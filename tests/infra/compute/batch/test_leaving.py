"""A machine whose hardware fails ends itself, with the real launcher in the containers: no later try gets it."""

from __future__ import annotations

import os

import pytest

from infra.compute.batch import watch
from tasks.foundation.errors import FailureClass
from tasks.runs.host_records import known_hosts
from tests.support.cloud.batch import BatchServer
from tests.support.cloud.waiters import Waiting, run
from tests.support.fakes.stand_ins import health_spec, replace_health

pytestmark = pytest.mark.proof

BREAKS_ON_NODE_1 = """
def run(job):
    if job.spec.attempt > 1:
        return outcome()
    if job.rank.index == 1:
        raise RuntimeError("nrt_execute failed with 1202")
    time.sleep(600)
"""


def test_a_machine_with_broken_hardware_gets_no_other_try(store, tmp_path, monkeypatch) -> None:
    replace_health(monkeypatch, tmp_path / "site", BREAKS_ON_NODE_1)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(watch, "_SHORTEST", 0.05)
    monkeypatch.setattr(watch, "LAST_LOOKS", (0.1,))
    server = BatchServer({"PYTHONPATH": os.environ["PYTHONPATH"]})
    try:
        server.register_all()
        for service in ("BATCH", "CLOUDWATCH_LOGS"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", server.url)
        spec = health_spec(store, 2, "compute=batch")
        broken, done = run(store, spec, Waiting()).tries
        first, second = ({life.node: life.host for life in server.lives() if life.attempt == n} for n in (1, 2))
    finally:
        server.stop()
    assert (broken.failure, done.failure) == (FailureClass.HOST, None)
    assert "NRT status 1202" in broken.message
    assert first[1] not in second.values(), "the broken machine was used again"
    assert first[0] in second.values(), "the other machine was not"
    (record,) = known_hosts(store)
    assert record.host == first[1]
    assert record.exclusion is not None
    assert record.exclusion.reason.startswith("health: NRT status 1202")

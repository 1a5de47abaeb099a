"""Stages as pods on Amazon EKS: the same jobs, whose details AWS Batch gives in other members.

Docs of AWS Batch and Kubernetes are all that the emulator's pods rest on; none ran on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import (
    ConfigError,
    DataError,
    FailureClass,
    HangError,
    HostError,
    OutOfMemoryError,
    StageError,
)
from tests.support.cloud.batch import STAGES, BatchServer
from tests.support.cloud.containers import containers_do, stand_in_environment
from tests.support.cloud.template import ON_EKS, STACK_ON_EKS
from tests.support.cloud.waiters import Waiting, run, state_of
from tests.support.workspace.specs import written_spec


@pytest.fixture(scope="module")
def cluster_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchServer]:
    server = BatchServer(stand_in_environment(tmp_path_factory.mktemp("site")), grace_seconds=1.0)
    server.register_all(STAGES, ON_EKS, **STACK_ON_EKS)
    yield server
    server.stop()


@pytest.fixture
def cluster(cluster_server: BatchServer, as_batch: Callable[[BatchServer], BatchServer]) -> BatchServer:
    return as_batch(cluster_server)


@pytest.mark.parametrize(
    ("stage", "workers", "hosts"), [(Stage.validate, 1, 1), (Stage.health, 2, 2), (Stage.infer, 3, 3)]
)
def test_a_stage_runs_as_pods(cluster: BatchServer, store: DirectoryStore, stage, workers, hosts) -> None:
    containers_do(store, 'open(f"{submitted}/at-{node}", "w"); ' + ('node or wait_for("at-1")' if hosts == 2 else ""))
    spec = written_spec(store, stage, workers)
    waiter = run(store, spec)
    (only,) = waiter.tries
    assert (only.attempt, only.failure, len(only.hosts)) == (1, None, hosts)
    assert only.billable_seconds == pytest.approx(only.running * hosts, rel=0.9)
    assert state_of(store, spec) == "over"
    (said,) = (line for line in waiter.lines if "CloudWatch" in line)
    assert "can't be shown" in said
    (job,) = cluster.jobs()
    assert "container" not in job
    (call,) = cluster.calls("SubmitJob")
    assert not {"containerOverrides", "propagateTags"} & call["request"].keys()


def test_a_transient_exit_code_is_retried_and_a_permanent_one_is_not(cluster, store) -> None:
    containers_do(store, 'fail("STORE", "no space", 74) if number == 1 else fail("DATA", "row 7 has no label", 65)')
    waiter = Waiting()
    with pytest.raises(DataError, match=r"row 7 .*[^,]*\)$"):
        run(store, written_spec(store, Stage.validate), waiter, tries=5)
    assert [one.failure for one in waiter.tries] == [FailureClass.STORE, FailureClass.DATA]


def test_a_silent_pod_is_judged_by_its_exit_code(cluster, store) -> None:
    containers_do(store, "sys.exit(3)")
    with pytest.raises(StageError, match=r"(?s)with 3; .*\(none\)"):
        run(store, written_spec(store, Stage.validate))


@pytest.mark.parametrize(
    ("strike", "error", "says"),
    [
        (lambda batch: batch.fail_pull("*"), ConfigError, "the image gpu-image could not be pulled .ErrImagePull"),
        (lambda batch: batch.out_of_memory("*", text="up"), OutOfMemoryError, "ran out of memory .OOMKilled"),
        (lambda batch: batch.scale_timeouts(0.01), HangError, "longer than batch.attempt_seconds = 60"),
        (lambda batch: batch.kill_host_when_log("*", "up", 0), HostError, "the container was lost"),
    ],
)
def test_a_failure_that_only_the_cluster_sees_has_its_class(cluster, store, strike, error, says) -> None:
    containers_do(store, 'say("up"); time.sleep(30)')
    strike(cluster)
    waiter = Waiting()
    with pytest.raises(error, match=says):
        run(store, written_spec(store, Stage.health, 1, "batch.attempt_seconds=60"), waiter)
    assert len(waiter.tries) == 1

"""Warmup, training and the next warmup on two machines: real launchers, torchruns, workers and tools, under AWS Batch.

Only AWS and the Neuron SDK are stand-ins. Each machine has four workers. The sixteen processes of warmup and of its
trial need 10 GB.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.jobs import Inputs, JobSpec, TrainInputs, WarmupInputs
from tasks.contracts.outcomes import StageResult, TrainOutcome, WarmupOutcome
from tasks.contracts.references import RowsRef, SpanRef
from tests.support.cloud.batch import BatchServer
from tests.support.cloud.s3 import S3Server
from tests.support.cloud.waiters import run
from tests.support.fakes.neuron.sdk import NeuronSdk
from tests.support.workspace.jobs import make_workspace, tiny_config

MACHINES, CORES = 2, 4
SETTINGS = (
    *("accelerator=xla", "compute=batch", "warmup.steps=1", "train.checkpoint_every=100 steps"),
    *(f"train.workers={MACHINES * CORES}", f"batch.processes_per_node={CORES}", "train.evaluate_every_steps=1000"),
)

pytestmark = pytest.mark.proof


class Cluster(NamedTuple):
    store: Store
    rows: RowsRef
    sdk: NeuronSdk
    batch: BatchServer

    def work(self, inputs: Inputs, attempt: int = 1) -> StageResult:
        """A stage on all machines, submitted to AWS Batch as the control plane does it."""
        spec = JobSpec(
            run_key="run",
            span=SpanRef(name="2026-01", version=1),
            attempt=attempt,
            submitted_as=attempt,
            workspace=self.store.uri,
            workers=MACHINES * CORES,
            config=tiny_config(*SETTINGS),
            inputs=inputs,
        )
        self.store.create(f"{spec.attempt_prefix}/spec.json", spec.to_json())
        run(self.store, spec, tries=1)
        return StageResult.model_validate_json(self.store.read(f"{spec.stage_prefix}/result.json"))


@pytest.fixture(scope="module")
def cluster(s3_server: S3Server) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="neuron-") as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        folder.chmod(0o777)  # for the containers' user
        sdk = NeuronSdk(folder)
        patch.setenv("AWS_ENDPOINT_URL", s3_server.url)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        batch = BatchServer(sdk.environment, users=True, whole_machine=True)
        try:
            batch.register_all()
            for service in ("BATCH", "CLOUDWATCH_LOGS"):
                patch.setenv(f"AWS_ENDPOINT_URL_{service}", batch.url)
            local, rows = make_workspace(folder / "rows", rows=64)
            store = open_store(s3_server.new_workspace())
            for key in local.list(""):
                store.upload(local.path(key), key)
            yield Cluster(store, rows, sdk, batch)
        finally:
            batch.stop()


class Warmed(NamedTuple):
    """The first warmup: its outcome, and what the stand-in has seen of it."""

    outcome: WarmupOutcome
    compilations: list[dict[str, Any]]
    cores: list[dict[str, Any]]


@pytest.fixture(scope="module")
def warmed(cluster: Cluster) -> Warmed:
    outcome = cluster.work(WarmupInputs(rows=(cluster.rows,), parent=None)).outcome
    assert isinstance(outcome, WarmupOutcome)
    return Warmed(outcome, cluster.sdk.compilations(), cluster.sdk.cores())


def test_each_graph_is_compiled_once_for_all_machines(warmed: Warmed) -> None:
    compiled = [one["module"] for one in warmed.compilations]
    assert warmed.outcome.compiled is not None
    assert len(set(compiled)) == len(compiled) == warmed.outcome.compiled.graphs > 3
    assert {one["when"] for one in warmed.compilations} == {"ahead of time"}
    assert len({one["host"] for one in warmed.compilations}) == 1


def test_the_compiler_may_use_every_core_and_is_bound_to_no_neuroncore(warmed: Warmed) -> None:
    for one in warmed.compilations:
        assert one["affinity"] == sorted(os.sched_getaffinity(0))
        bound = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_ROOT_COMM_ID", "NEURON_PJRT_", "PJRT_LOCAL_", "OMP_PLACES")
        assert not [name for name in one["environment"] if name.startswith(bound)]
        assert "--target=trn1" in one["environment"]["NEURON_CC_FLAGS"]


def test_each_worker_has_a_core_of_its_own(warmed: Warmed) -> None:
    """In the trial that only collects graphs, and in the one that runs; a core taken twice would have ended the job."""
    places = defaultdict(list)
    for opened in warmed.cores:
        places[opened["host"], opened["collects"]].append(opened["visible"])
    assert len(places) == 2 * MACHINES
    assert all(sorted(visible) == [str(core) for core in range(CORES)] for visible in places.values())


def test_training_and_the_next_warmup_compile_nothing(cluster: Cluster, warmed: Warmed) -> None:
    before, compiled = len(cluster.sdk.compilations()), warmed.outcome.compiled
    trained = cluster.work(TrainInputs(rows=(cluster.rows,), history=(), parent=None, compiled=compiled)).outcome
    again = cluster.work(WarmupInputs(rows=(cluster.rows,), parent=None), attempt=2).outcome
    assert len(cluster.sdk.compilations()) == before
    assert isinstance(trained, TrainOutcome)
    assert trained.graphs is not None
    assert trained.graphs.misses == 0
    assert isinstance(again, WarmupOutcome)
    assert again.compiled == compiled
    processes = 2 * MACHINES * (CORES + 2)  # workers, launcher and torchrun of two jobs
    assert max(cluster.batch.credential_requests().values()) <= 3 * processes

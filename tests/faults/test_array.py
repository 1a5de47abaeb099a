"""Inference as an array of independent jobs: together they write the folder that a single worker writes."""

import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from infra.root_cause import worker_failures
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from infra.store.manifest import Manifest, open_folder, read_manifest
from tasks.contracts.jobs import InferInputs, JobSpec
from tasks.contracts.outcomes import InferOutcome, StageResult
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.worker import infer
from tasks.worker.catalogue.reuse import ShardNote
from tasks.worker.process.job import Job, PhaseClock, Rank, Share
from tests.support.cloud.s3 import S3Server
from tests.support.processes.kills import Kill, infer_and_die, work_as_child
from tests.support.processes.ranks import finish, start
from tests.support.workspace.jobs import (
    FEATURES,
    infer_alone,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
)

CONFIG = tiny_config(*FEATURES, "infer.shard_rows=10", "infer.workers=4")  # 100 items in 16 partitions
CHILDREN = 4


class Array(NamedTuple):
    """A spec in its workspace, and the manifest that one worker alone wrote."""

    store: Store
    spec: JobSpec
    alone: Manifest

    @property
    def prefix(self) -> str:
        inputs = self.spec.inputs
        assert isinstance(inputs, InferInputs)
        return inputs.vectors

    @property
    def result(self) -> str:
        return f"{self.spec.stage_prefix}/result.json"


@pytest.fixture(scope="module")
def made_alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[DirectoryStore, InferInputs, Manifest]:
    """A workspace with a model, and the manifest of its vectors by one worker, which are deleted."""
    store, rows = make_workspace(tmp_path_factory.mktemp("alone"), rows=130, distinct=100)
    model = model_of(train_model(store, CONFIG, rows))
    inputs = InferInputs(catalogue=make_catalogue(store, CONFIG, rows), model=model)
    outcome = infer_alone(make_job(store, CONFIG, inputs, run_key="alone"))
    manifest = read_manifest(store, outcome.prefix)
    store.delete(outcome.prefix)
    return store, inputs, manifest


@pytest.fixture
def array(made_alone: tuple[DirectoryStore, InferInputs, Manifest], tmp_path: Path) -> Array:
    source, inputs, manifest = made_alone
    shutil.copytree(source.root, tmp_path / "workspace")
    store = DirectoryStore(tmp_path / "workspace")
    return Array(store, submitted(store, inputs), manifest)


def submitted(store: Store, inputs: InferInputs, attempt: int = 1, submitted_as: int = 1) -> JobSpec:
    assert isinstance(store, DirectoryStore)
    spec = make_job(store, CONFIG, inputs, run_key="array", attempt=attempt).spec
    spec = spec.model_copy(update={"workers": CHILDREN, "submitted_as": submitted_as})
    store.write(f"{spec.attempt_prefix}/spec.json", spec.to_json())
    return spec


def run_child(array: Array, child: int) -> int:
    return finish(start(work_as_child, child, CHILDREN, array.spec))


def assert_whole(array: Array) -> InferOutcome:
    """The folder equals a single worker's byte for byte, and the result says so."""
    folder, manifest = open_folder(array.store, array.prefix, "vectors")
    assert manifest == array.alone
    assert sum(pq.read_metadata(folder / entry.name).num_rows for entry in manifest.files) == 100
    outcome = StageResult.model_validate_json(array.store.read(array.result)).outcome
    assert isinstance(outcome, InferOutcome)
    assert (outcome.prefix, outcome.vectors, outcome.shards) == (array.prefix, 100, len(manifest.files))
    return outcome


def test_one_child_makes_all_partitions_if_no_other_comes(array: Array):
    assert run_child(array, 0) == 0
    outcome = assert_whole(array)
    assert outcome.shards_reused == 0
    assert outcome.texts_per_second > 0


def test_children_at_the_same_time_share_the_partitions(array: Array):
    processes = [start(work_as_child, child, CHILDREN, array.spec) for child in range(CHILDREN)]
    assert [finish(process) for process in processes] == [0] * CHILDREN
    assert_whole(array)
    assert len({note.worker for note in notes(array)}) > 1


def test_the_partition_of_a_lost_child_goes_to_another(array: Array):
    """The lost child holds the lease of its first partition, which nobody renews."""
    inputs = array.spec.inputs
    assert isinstance(inputs, InferInputs)
    lost = start(infer_and_die, array.spec, Kill("tasks.worker.infer:embed", 2, "before"))
    assert finish(lost) == -signal.SIGKILL
    assert len(notes(array)) == 1
    assert [run_child(array, child) for child in (1, 0)] == [0, 0]
    assert assert_whole(array).shards_reused == 0, "all of this job"


def test_a_later_attempt_reuses_the_shards_of_an_earlier_one(array: Array):
    inputs = array.spec.inputs
    assert isinstance(inputs, InferInputs)
    lost = start(infer_and_die, array.spec, Kill("tasks.worker.infer:embed", 4, "before"))
    assert finish(lost) == -signal.SIGKILL
    later = array._replace(spec=submitted(array.store, inputs, attempt=2, submitted_as=2))
    assert run_child(later, 0) == 0
    assert assert_whole(later).shards_reused == 3


def test_a_child_that_comes_late_finds_all_done(array: Array):
    assert run_child(array, 0) == 0
    first = assert_whole(array)
    assert run_child(array, 3) == 0
    assert assert_whole(array) == first


def notes(array: Array) -> list[ShardNote]:
    keys = [key for key in array.store.list(f"{array.spec.stage_prefix}/shards") if key.endswith(".json")]
    return [ShardNote.model_validate_json(array.store.read(key)) for key in keys]


def test_each_child_writes_its_own_error_file(array: Array):
    inputs = array.spec.inputs
    assert isinstance(inputs, InferInputs)
    empty = inputs.catalogue.model_copy(update={"items": 0})
    spec = submitted(array.store, inputs.model_copy(update={"catalogue": empty}))
    failing = array._replace(spec=spec)
    assert [run_child(failing, child) for child in (3, 1)] == [POLICIES[FailureClass.DATA].exit_code] * 2
    failures = worker_failures(array.store, spec)
    assert [failure.rank for failure in failures] == [3, 1]
    assert [array.store.exists(f"{spec.attempt_prefix}/error-rank{n}.json") for n in range(4)] == [0, 1, 0, 1]


def test_each_worker_of_a_child_has_its_own_share():
    shares = [Rank(index, 2, index, 2, child, 3).share for child in range(3) for index in range(2)]
    assert shares == [Share(number, 6) for number in range(6)]


def test_an_array_works_in_a_bucket(array: Array, s3: S3Server):
    bucket = open_store(s3.new_workspace())
    for key in array.store.list(""):
        bucket.write(key, array.store.read(key))
    spec = array.spec.model_copy(update={"workspace": bucket.uri})
    for child in (1, 0):
        job = Job(spec, bucket, Rank(0, 1, 0, child=child, children=2), PhaseClock(0.0))
        outcome = infer.run(job)
    assert outcome is not None, "the first worker returns it"
    assert outcome.vectors == 100
    assert read_manifest(bucket, array.prefix) == array.alone

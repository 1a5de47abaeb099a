"""Validate as an array of jobs: together they write what one worker writes, also if one of them is killed."""

import functools
import shutil
import signal
import time
from pathlib import Path

import pytest

from infra.compute.batch.runner import BatchRunner
from infra.compute.local import LocalRunner
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tasks.contracts.jobs import JobSpec
from tasks.contracts.outcomes import StageResult, ValidateOutcome
from tasks.contracts.references import RowsRef, SpanRef
from tasks.contracts.workspace import FAILURE, RESULT, SHARE, SPEC
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.worker import validate
from tasks.worker.process import shared_work
from tests.support.cloud.cloud import open_cloud
from tests.support.cloud.s3 import S3Server
from tests.support.fakes.stand_ins import Heard
from tests.support.processes.kills import Kill, arm, work_as_child
from tests.support.processes.ranks import finish, start
from tests.support.workspace.spans import APRIL, MARCH, job, row, write_span

WORDS = " ".join(f"word{number}" for number in range(12))
SETTINGS = (
    "evaluate.holdout_share=0.3",
    "evaluate.group=row_id",
    "validate.workers=3",
    "validate.items.alike.stop=null",
)
EARLIER = tuple(SpanRef(name=f"2026-{month:02d}", version=1) for month in (1, 2))
CHILDREN = 3


class Array:
    """The validation of two spans after two others by three children, and the outcome of one worker alone."""

    def __init__(self, folder: Path) -> None:
        self.store, self.history = DirectoryStore(folder / "workspace"), list[RowsRef]()
        for number, span in enumerate((*EARLIER, MARCH, APRIL)):
            texts = [f"kind{each} {WORDS} kind{each}" + " more" * number for each in range(40)]
            write_span(
                self.store, folder, span,
                [row(40 * number + each, query=text, item=f"lamp {each}") for each, text in enumerate(texts)],
            )  # fmt: skip
        for span in EARLIER:
            self.history += validate.judge(job(self.store, (span,), self.history, SETTINGS)).rows
        shutil.copytree(folder / "workspace", folder / "alone")
        self.alone = validate.judge(job(DirectoryStore(folder / "alone"), (MARCH, APRIL), self.history, SETTINGS))

    def submitted(self, *settings: str, attempt: int = 1) -> JobSpec:
        spec = job(self.store, (MARCH, APRIL), self.history, (*SETTINGS, *settings), attempt=attempt).spec
        spec = spec.model_copy(update={"workers": CHILDREN})
        self.store.write(SPEC.of(spec), spec.to_json())
        return spec

    def outcome(self, spec: JobSpec) -> ValidateOutcome:
        outcome = StageResult.model_validate_json(self.store.read(RESULT.of(spec))).outcome
        assert isinstance(outcome, ValidateOutcome)
        return outcome


@pytest.fixture
def array(tmp_path: Path) -> Array:
    return Array(tmp_path)


def child_of(spec: JobSpec, child: int, *kills: Kill) -> None:
    """A child, for which nobody waits long if it is killed."""
    shared_work.WAIT_SECONDS, shared_work.LEASE_SECONDS, shared_work.SIGN_SECONDS = 0.1, 1.0, 1.0
    shared_work.GRACE_SECONDS = 0.2
    for kill in kills:
        arm(kill)
    work_as_child(child, CHILDREN, spec)


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.05)


def test_the_share_of_a_killed_child_is_taken_by_another(array: Array, tmp_path: Path):
    spec, ended = array.submitted(), tmp_path / "ended"
    waits = Kill(
        "tasks.worker.process.shared_work:Workers.answers", 1, "before", act=functools.partial(wait_for, ended)
    )
    first = start(child_of, spec, 0, waits)  # it has asked, and leaves the shares to the others
    assert finish(start(child_of, spec, 1, Kill("tasks.worker.rows.shares:_write_met", 1))) == -signal.SIGKILL
    ended.touch()
    assert [finish(each) for each in (first, start(child_of, spec, 2))] == [0, 0]
    assert array.alone.left_out_of_training
    assert array.alone.left_out_of_holdout
    assert array.outcome(spec) == array.alone
    made = [
        key
        for key in array.store.list(SHARE.within(run=spec.run_key, stage="validate"))
        if key.endswith("MANIFEST.json")
    ]
    assert len(made) == 6, "two earlier spans are two shares: for each span of the window, and for their pairs"


def test_a_killed_first_worker_finds_the_shares_that_are_done(array: Array):
    """Its sign of life ends with it; the others wait for the next one, which AWS Batch starts."""
    spec = array.submitted()
    other = start(child_of, spec, 1)
    assert (
        finish(start(child_of, spec, 0, Kill("tasks.worker.process.shared_work:Workers.answers", 1))) == -signal.SIGKILL
    )
    assert [
        key
        for key in array.store.list(SHARE.within(run=spec.run_key, stage="validate"))
        if key.endswith("MANIFEST.json")
    ]
    assert finish(start(child_of, spec, 0)) == 0
    assert finish(other) == 0
    assert array.outcome(spec) == array.alone


def test_unfit_data_end_all_children_at_once(array: Array):
    spec = array.submitted("validate.min_rows=1000")
    children = [start(child_of, spec, child) for child in range(CHILDREN)]
    began = time.monotonic()
    assert [finish(each) for each in children] == [POLICIES[FailureClass.DATA].exit_code, 0, 0]
    assert time.monotonic() - began < shared_work.PATIENCE_SECONDS
    assert array.store.exists(FAILURE.of(spec, rank=0))


def test_an_array_of_aws_batch_writes_what_one_worker_writes(array: Array, s3_server: S3Server):
    with open_cloud(s3_server) as cloud:
        bucket = open_store(cloud.s3.new_workspace())
        for key in array.store.list(""):
            bucket.upload(array.store.path(key), key)
        spec = array.submitted("compute=batch").model_copy(update={"workspace": bucket.uri})
        bucket.write(SPEC.of(spec), spec.to_json())
        BatchRunner(bucket, spec.config).run(spec, Heard(), tries=1)
        (job,) = cloud.batch.jobs()
        assert job["arrayProperties"]["size"] == CHILDREN
        result = StageResult.model_validate_json(bucket.read(RESULT.of(spec)))
    assert result.outcome == array.alone


@pytest.mark.parametrize("workers", [2, pytest.param(8, marks=pytest.mark.proof)])
def test_workers_of_the_local_runner_write_what_one_writes(array: Array, workers: int):
    spec = array.submitted().model_copy(update={"workers": workers})
    array.store.write(SPEC.of(spec), spec.to_json())
    LocalRunner(array.store).run(spec, Heard(), tries=1)
    assert array.outcome(spec) == array.alone
    assert array.store.list(SHARE.within(run=spec.run_key, stage="validate"))

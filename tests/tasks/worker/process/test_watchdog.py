import os
import re
import threading
from pathlib import Path

import pytest

from infra.root_cause import worker_failures
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec
from tasks.contracts.outcomes import WorkerFailure
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.worker.process import watchdog
from tasks.worker.process.job import Job, PhaseClock, Rank
from tasks.worker.process.watchdog import Watchdog
from tests.support.processes.ends import job_of
from tests.support.processes.kills import Kill, hang, work, work_alone
from tests.support.processes.ranks import finish, run_ranks, start
from tests.support.workspace.jobs import make_workspace

HANG = POLICIES[FailureClass.HANG].exit_code
STEP = "tasks.worker.training.loop:TrainStep.__call__"


def start_job(folder: Path, *overrides: str) -> Job:
    """A job with its spec in the workspace; four seconds without a step are too many."""
    store, rows = make_workspace(folder)
    job = job_of(store, rows, "train.watchdog_seconds=4", *overrides)
    store.write(f"{job.spec.attempt_prefix}/spec.json", job.spec.to_json())
    return job


def only_failure(job: Job) -> WorkerFailure:
    [failure] = worker_failures(job.store, job.spec)
    return failure


PLACES = {
    "in a step": (Kill(STEP, 3, "before", act=hang), r"the last was step 2 \(\d+ x 32 tokens\)"),
    "in the first step": (Kill(STEP, 1, "before", act=hang), "there was none before"),
    "while a batch is made": (
        Kill("tasks.worker.training.batches:make_batch", 1, "before", act=hang),
        "there was none before",
    ),
    "in an evaluation": (
        Kill("tasks.worker.training.loop:judge", 2, "before", act=hang),
        r"the last was step 5 \(",
    ),
    "waiting for a checkpoint": (
        Kill("tasks.worker.training.checkpoint:commit", 1, "before", act=hang),  # step 3's; the next one is due at 6
        r"the last was step 6 \(",
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_hanging_training_is_ended_and_its_place_reported(tmp_path: Path, place: str):
    kill, last = PLACES[place]
    job = start_job(tmp_path)
    assert finish(start(work_alone, job.spec, kill)) == HANG
    failure = only_failure(job)
    assert (failure.rank, failure.failure) == (0, "HANG")
    assert re.search(last, failure.message)
    for part in ("the main thread is at ", "threading.py:", "raise train.watchdog_seconds"):
        assert part in failure.message
    assert "tasks/worker/train.py" in failure.traceback, "the way from the loop to where it stands"


def test_each_worker_reports_its_place(tmp_path: Path):
    """One worker hangs, and the other waits for it in a collective."""
    job = start_job(tmp_path, "train.workers=2")
    with pytest.raises(EOFError):  # they end without a word to their parent
        run_ranks(2, work, job.spec, (1,), Kill(STEP, 3, "before", act=hang))
    failures = {failure.rank: failure for failure in worker_failures(job.store, job.spec)}
    assert failures[1].failure == "HANG"
    assert failures[0].failure in ("HANG", "HOST"), "both at once, or the loss of the other came first"
    assert "in hang" in failures[1].traceback
    assert "in all_" in failures[0].traceback, "all_gather or all_reduce"


class HangingStore(DirectoryStore):
    """A workspace whose writes hang."""

    def write(self, key: str, data: bytes) -> None:
        hang()


def watch_and_hang(spec: JobSpec) -> None:
    watchdog.WRITE_ERROR_SECONDS = 0.1
    job = Job(spec, HangingStore(Path(spec.workspace)), Rank(0, 1, 0), PhaseClock(0.0))
    with Watchdog(job, 0.1):
        hang()


def test_a_hanging_workspace_does_not_delay_the_end(tmp_path: Path):
    assert finish(start(watch_and_hang, start_job(tmp_path).spec)) == HANG


def beat_longer_than_allowed(spec: JobSpec) -> None:
    job = Job(spec, DirectoryStore(Path(spec.workspace)), Rank(0, 1, 0), PhaseClock(0.0))
    with Watchdog(job, 1.0) as watching:
        for _ in range(15):
            threading.Event().wait(0.1)
            watching.beat()
    os._exit(sum(thread.name == "watchdog" for thread in threading.enumerate()))


def test_a_training_with_steps_is_not_ended_and_its_end_stops_the_watchdog(tmp_path: Path):
    assert finish(start(beat_longer_than_allowed, start_job(tmp_path).spec)) == 0

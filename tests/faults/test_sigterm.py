"""Training that gets SIGTERM keeps a checkpoint, and the run that continues from it ends like an unbroken one."""

from pathlib import Path

import pytest

from infra.compute.local import LocalRunner
from infra.root_cause import worker_failures
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec, Progress
from tasks.foundation.errors import POLICIES, CancelledError, FailureClass
from tasks.worker import train
from tasks.worker.process.job import Job
from tests.support.fakes.stand_ins import Heard
from tests.support.processes.ends import CONFIG, End, assert_same_end, job_of, train_as_rank
from tests.support.processes.kills import Kill, be_told_to_stop, work
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import make_workspace, tiny_config, train_model

STEP = "tasks.worker.training.loop:TrainStep.__call__"
LOSSES = "tasks.worker.training.loop:LoopRecorder.losses_if_due"
CANCELLED = POLICIES[FailureClass.CANCELLED].exit_code
TWO_WORKERS = "train.workers=2"


def signalled(target: str, call: int) -> Kill:
    return Kill(target, call, "before", act=be_told_to_stop)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> End:
    """The run without a signal."""
    store, rows = make_workspace(tmp_path_factory.mktemp("unbroken"))
    return store, train_model(store, tiny_config(*CONFIG), rows)


@pytest.fixture(scope="module")
def unbroken_by_two(tmp_path_factory: pytest.TempPathFactory) -> End:
    store, rows = make_workspace(tmp_path_factory.mktemp("unbroken-by-two"))
    return store, run_ranks(2, train_as_rank, job_of(store, rows, TWO_WORKERS))[0]


def start_job(folder: Path, *overrides: str) -> Job:
    """A job with its spec in the workspace."""
    store, rows = make_workspace(folder)
    job = job_of(store, rows, *overrides)
    store.write(f"{job.spec.attempt_prefix}/spec.json", job.spec.to_json())
    return job


def messages(spec: JobSpec, store: DirectoryStore) -> list[str]:
    """The workers' error messages by rank; all must be cancelled."""
    failures = sorted(worker_failures(store, spec), key=lambda failure: failure.rank)
    assert {failure.failure for failure in failures} == {"CANCELLED"}
    return [failure.message for failure in failures]


def kept(step: int) -> str:
    return f"stopped by SIGTERM after step {step}; its checkpoint is kept, and the next attempt continues from there"


def checkpoints(store: DirectoryStore) -> list[str]:
    return [key for key in store.list("lineages") if key.endswith("MANIFEST.json")]


# The losses are logged every two steps and at checkpoints, which come every three; the evaluation every five.
PLACES = {
    "before the first step": (2, signalled(STEP, 1)),
    "at a step that is logged": (4, signalled(STEP, 4)),
    "at a step that is not": (8, signalled(STEP, 7)),
    "before a step with a checkpoint": (6, signalled(STEP, 5)),
    "at a step with an evaluation": (10, signalled(STEP, 10)),
    "at a step with both": (15, signalled(STEP, 15)),
    "in an evaluation": (6, Kill("tasks.worker.training.loop:judge", 2, act=be_told_to_stop)),
    "while a checkpoint is written": (
        4,
        Kill("tasks.worker.training.checkpoint:CheckpointWriter.save", 1, act=be_told_to_stop),
    ),
    "twice, from two senders of one request": (8, signalled(STEP, 7), signalled(LOSSES, 7)),
}


@pytest.mark.parametrize("place", PLACES)
def test_training_stops_at_the_next_logged_step_and_continues_from_there(tmp_path: Path, unbroken: End, place: str):
    step, *kills = PLACES[place]
    job = start_job(tmp_path)
    assert run_ranks(1, work, job.spec, (0,), *kills) == [CANCELLED]
    store = DirectoryStore(Path(job.store.uri))
    assert messages(job.spec, store) == [kept(step)]
    assert checkpoints(store)[-1] == f"lineages/main/step-{step:08d}/MANIFEST.json"
    outcome = train.run(job)
    assert outcome.resumed_at_step == step
    assert_same_end((store, outcome), unbroken)


def test_training_stopped_three_times_ends_with_the_same_weights(tmp_path: Path, unbroken: End):
    job = start_job(tmp_path)
    for _ in range(3):
        assert run_ranks(1, work, job.spec, (0,), signalled(STEP, 4)) == [CANCELLED]
    outcome = train.run(job)
    assert outcome.resumed_at_step == 12, "stopped after 4, 8 and 12"
    assert_same_end((DirectoryStore(Path(job.store.uri)), outcome), unbroken)


@pytest.mark.parametrize(("ranks", "call", "step"), [((0,), 7, 8), ((1,), 10, 10), ((0, 1), 7, 8)], ids=str)
def test_all_workers_stop_together_when_one_gets_the_signal(
    tmp_path: Path, unbroken_by_two: End, ranks: tuple[int, ...], call: int, step: int
):
    job = start_job(tmp_path, TWO_WORKERS)
    assert run_ranks(2, work, job.spec, ranks, signalled(STEP, call)) == [CANCELLED, CANCELLED]
    store = DirectoryStore(Path(job.store.uri))
    assert messages(job.spec, store) == [kept(step), kept(step)]
    outcome, _ = run_ranks(2, train_as_rank, job)
    assert outcome.resumed_at_step == step
    assert_same_end((store, outcome), unbroken_by_two)


def test_a_signal_in_the_last_steps_does_not_stop_the_training(tmp_path: Path, unbroken: End):
    job = start_job(tmp_path)
    assert run_ranks(1, work, job.spec, (0,), signalled(STEP, 16)) == [0]
    store = DirectoryStore(Path(job.store.uri))
    assert store.exists(f"{job.spec.stage_prefix}/result.json")
    assert checkpoints(store) == [f"{unbroken[1].checkpoint.prefix}/MANIFEST.json"]


@pytest.mark.parametrize(
    ("target", "there"),
    [("tasks.worker.train:open_pairs", []), ("tasks.worker.train:_agree", ["step-00000016"])],
    ids=["before the first step", "after the last"],
)
def test_a_signal_outside_the_loop_ends_the_training_at_once(tmp_path: Path, target: str, there: list[str]):
    job = start_job(tmp_path)
    assert run_ranks(1, work, job.spec, (0,), signalled(target, 1)) == [CANCELLED]
    store = DirectoryStore(Path(job.store.uri))
    assert messages(job.spec, store) == ["SystemExit: stopped by signal 15"]
    assert checkpoints(store) == [f"lineages/main/{name}/MANIFEST.json" for name in there]
    assert not store.exists(f"{job.spec.stage_prefix}/result.json")


class Impatient(Heard):
    """Cancels once training is under way."""

    def progress(self, progress: Progress) -> None:
        super().progress(progress)
        if progress.done >= 4:
            raise CancelledError("the test wants it to stop")


@pytest.mark.proof
@pytest.mark.pipeline
def test_training_cancelled_by_the_runner_loses_no_step(tmp_path: Path):
    """Two workers as the runner starts and ends them, at whichever step the signal finds them."""
    long = (TWO_WORKERS, "train.epochs=30", "train.checkpoint_every=1000 steps", "train.evaluate_every_steps=70")
    jobs = [start_job(tmp_path / name, *long) for name in ("unbroken", "stopped")]
    stores = [DirectoryStore(Path(job.store.uri)) for job in jobs]
    spec = jobs[1].spec.model_copy(update={"workers": 2})
    stores[1].write(f"{spec.attempt_prefix}/spec.json", spec.to_json())
    with pytest.raises(CancelledError, match="the test wants"):
        LocalRunner(stores[1]).run(spec, Impatient(), tries=1)
    [key] = checkpoints(stores[1])
    step = int(key.split("/")[2].removeprefix("step-"))
    assert messages(spec, stores[1]) == [kept(step), kept(step)]
    unbroken, resumed = [run_ranks(2, train_as_rank, job)[0] for job in jobs]
    assert resumed.resumed_at_step == step
    assert_same_end((stores[1], resumed), (stores[0], unbroken))

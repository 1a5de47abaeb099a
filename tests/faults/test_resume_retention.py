"""A killed or stopped run ends like an unbroken one with averages, replay, decay and a best step too."""

import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import TrainOutcome
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.worker import train
from tasks.worker.process.job import Job, Rank
from tests.support.processes.ends import CONFIG, End, assert_same_end, train_as_rank
from tests.support.processes.kills import Kill, be_told_to_stop, train_and_die, train_rank_and_die, work
from tests.support.processes.ranks import finish, run_ranks, start
from tests.support.workspace.jobs import make_job, make_workspace, tensors_of, tiny_config, train_model, write_rows

COMMITTED = "tasks.worker.training.checkpoint:commit"
STEP = "tasks.worker.training.loop:TrainStep.__call__"
RESULT = Kill("tasks.worker.train:_agree", 1, "before")
CANCELLED = POLICIES[FailureClass.CANCELLED].exit_code

AVERAGED = (
    "train.averaging={ema_half_life_steps: 3}",
    "train.keep_best={metric: mrr@10, rows: 16, patience: null}",
    "train.decay_before_release={share: 0.5, floor: 0.1}",
    "train.replay=0.3",
)
ENDED_EARLY = (  # by a rate that ruins the model
    "train.averaging={merge_with_parent: 0.4}",
    "train.keep_best={metric: mrr@10, rows: 16, patience: 2}",
    "train.learning_rate=0.03",
    "train.evaluate_every_steps=2",
    "train.replay=0.3",
)


class Expected(NamedTuple):
    """The run that is not interrupted; the one before it ended at step 16."""

    job: Job
    end: End


def second_run(folder: Path, *settings: str) -> Job:
    """The run after a first one with the plain settings."""
    store, rows = make_workspace(folder)
    first = train_model(store, tiny_config(*CONFIG), rows, run_key="earlier")
    later = write_rows(store, "2026-02", 160, folder)
    inputs = TrainInputs(rows=(later,), history=(rows,), parent=first.checkpoint)
    return make_job(store, tiny_config(*CONFIG, *settings), inputs)


def end(job: Job) -> End:
    return DirectoryStore(Path(job.store.uri)), train.run(job)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    job = second_run(tmp_path_factory.mktemp("averaged"), *AVERAGED)
    return Expected(job, end(job))


@pytest.fixture(scope="module")
def ended_early(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    job = second_run(tmp_path_factory.mktemp("ended-early"), *ENDED_EARLY)
    return Expected(job, end(job))


def assert_the_same_weights_are_trained_on(ours: End, expected: End) -> None:
    found, held = (tensors_of(store, outcome.checkpoint, "trained") for store, outcome in (ours, expected))
    assert all(torch.equal(found[name], held[name]) for name in held)


def kept_step(expected: Expected) -> int:
    """The step that the run keeps; if it is the last one, other settings are needed for these tests to say anything."""
    outcome = expected.end[1]
    assert outcome.kept_step is not None
    assert outcome.rows_replayed > 0
    return outcome.kept_step


def committed(step: int) -> Kill:
    """Right after the checkpoint of this step was written."""
    return Kill(COMMITTED, 1, about=f"step-{step:08d}")


@pytest.mark.parametrize("place", ["after the first checkpoint", "after the best step", "later", "before the result"])
def test_a_killed_run_with_an_average_ends_with_the_same_weights(tmp_path: Path, averaged: Expected, place: str):
    best, last = kept_step(averaged), averaged.end[1].last_step
    after = next(step for step in range(best + 1, last) if not step % 3)
    at, resumed = {
        "after the first checkpoint": (committed(18), 18),
        "after the best step": (committed(best), best),
        "later": (committed(after), after),
        "before the result": (RESULT, last),
    }[place]
    job = second_run(tmp_path, *AVERAGED)
    assert finish(start(train_and_die, job.spec, at)) == -signal.SIGKILL
    found = end(job)
    assert_same_end(found, averaged.end)
    assert_the_same_weights_are_trained_on(found, averaged.end)
    assert found[1].development == averaged.end[1].development
    assert found[1].resumed_at_step == resumed


def test_a_lost_best_checkpoint_is_trained_again(tmp_path: Path, averaged: Expected):
    """What came after it can't end the run as it would have ended."""
    job = second_run(tmp_path, *AVERAGED)
    best = kept_step(averaged)
    after = next(step for step in range(best + 1, averaged.end[1].last_step) if not step % 3)
    assert finish(start(train_and_die, job.spec, committed(after))) == -signal.SIGKILL
    job.store.delete(f"lineages/main/step-{best:08d}/MANIFEST.json")
    found = end(job)
    assert_same_end(found, averaged.end)
    assert (found[1].resumed_at_step or 0) < best


def test_a_killed_run_that_ends_early_ends_with_the_same_weights(tmp_path: Path, ended_early: Expected):
    development = ended_early.end[1].development
    assert [point.step for point in development][-3] == kept_step(ended_early), "two evaluations without a gain"
    job = second_run(tmp_path, *ENDED_EARLY)
    assert finish(start(train_and_die, job.spec, RESULT)) == -signal.SIGKILL
    found = end(job)
    assert found[1].resumed_at_step == ended_early.end[1].last_step
    assert_same_end(found, ended_early.end)


def test_a_run_stopped_just_before_it_would_have_ended_ends_at_that_step(tmp_path: Path, ended_early: Expected):
    """The evaluation that ends it is left to the next attempt, which finds a partial checkpoint of this very step."""
    job = second_run(tmp_path, *ENDED_EARLY)
    job.store.write(f"{job.spec.attempt_prefix}/spec.json", job.spec.to_json())
    last = ended_early.end[1].last_step
    stopped = Kill(STEP, last - ended_early.end[1].first_step, act=be_told_to_stop)
    assert run_ranks(1, work, job.spec, (0,), stopped) == [CANCELLED]
    found = end(job)
    assert found[1].resumed_at_step == last
    assert_same_end(found, ended_early.end)


@pytest.mark.parametrize("settings", [AVERAGED, ENDED_EARLY], ids=["averaged", "ended early"])
def test_two_workers_agree_and_end_the_same_after_a_kill(tmp_path: Path, averaged: Expected, settings: tuple[str, ...]):
    ends: list[End] = []
    for folder, at in ((tmp_path / "unbroken", None), (tmp_path / "killed", committed(18))):
        job = second_run(folder, *settings, "train.workers=2")
        if at is not None:
            with pytest.raises(EOFError):  # rank 0 was killed, rank 1 noticed
                run_ranks(2, train_rank_and_die, job.spec, at)
        first, second = run_ranks(2, train_as_rank, job)
        by_the_first = ("pairs_per_second", "checkpoints", "communication")
        measured = {name: getattr(first, name) for name in by_the_first}
        assert first == second.model_copy(update=measured)
        ends.append((DirectoryStore(Path(job.store.uri)), first))
    assert_same_end(ends[1], ends[0])
    if settings == AVERAGED:  # the other one's rate makes large differences of small ones
        together, alone = ends[0][1], averaged.end[1]
        for ours, theirs in zip(together.losses, alone.losses, strict=True):
            assert ours.metrics["loss"] == pytest.approx(theirs.metrics["loss"], rel=1e-3, abs=1e-4)
        assert together.rows_replayed == alone.rows_replayed


def test_the_best_checkpoint_is_there_until_the_slowest_worker_has_read_it(tmp_path: Path):
    job = second_run(tmp_path, *ENDED_EARLY, "train.workers=2")
    first, second = run_ranks(2, train_and_read_late, job)
    assert first.checkpoint == second.checkpoint


def train_and_read_late(rank: Rank, job: Job) -> TrainOutcome:
    """Train; the second worker begins to read the best step when the first could long have deleted it."""

    def late(*arguments: Any) -> None:
        time.sleep(3.0 * rank.index)
        load_weights(*arguments)

    load_weights, train.load_weights = train.load_weights, late
    return train_as_rank(rank, job)

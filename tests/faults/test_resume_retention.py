"""A killed or stopped run ends like an unbroken one with averages, replay, decay and a best step too."""

import signal
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.worker import train
from tasks.worker.process.job import Job
from tests.support.processes.ends import CONFIG, End, assert_same_end, train_as_rank
from tests.support.processes.kills import Kill, be_told_to_stop, train_and_die, train_rank_and_die, work
from tests.support.processes.ranks import finish, run_ranks, start
from tests.support.workspace.jobs import make_job, make_workspace, tensors_of, tiny_config, train_model, write_rows

COMMITTED = "tasks.worker.training.checkpoint:commit"
STEP = "tasks.worker.training.step:TrainStep.__call__"
RESULT = Kill("tasks.worker.train:_agree", 1, "before")
CANCELLED = POLICIES[FailureClass.CANCELLED].exit_code

AVERAGED = (
    "train.averaging={ema_half_life_steps: 3}",
    "train.keep_best={metric: mrr@10, rows: 16, patience: null}",
    "train.decay_before_release={share: 0.5, floor: 0.1}",
    "train.replay=0.3",
)
ENDED_EARLY = (  # by a rate that ruins the model
    "train.averaging={parent_share: 0.4}",
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


def test_the_runs_choose_an_earlier_step(averaged: Expected, ended_early: Expected):
    """Otherwise the tests below would show less than they say."""
    last, early = averaged.end[1], ended_early.end[1]
    assert (last.first_step, last.last_step, last.kept_step) == (16, 36, 25)
    assert (early.first_step, early.last_step, early.kept_step) == (16, 22, 18)
    assert last.rows_replayed > 0
    assert early.rows_replayed > 0


@pytest.mark.parametrize(
    ("at", "resumed"),
    [(Kill(COMMITTED, 2), 20), (Kill(COMMITTED, 6), 27), (RESULT, 36)],
    ids=["before the best step", "after the best step", "before the result"],
)
def test_a_killed_run_with_an_average_ends_with_the_same_weights(
    tmp_path: Path, averaged: Expected, at: Kill, resumed: int
):
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
    assert finish(start(train_and_die, job.spec, Kill(COMMITTED, 6))) == -signal.SIGKILL
    job.store.delete("lineages/main/step-00000025/MANIFEST.json")
    found = end(job)
    assert_same_end(found, averaged.end)
    assert (found[1].resumed_at_step or 0) < 25


def test_a_killed_run_that_ends_early_ends_with_the_same_weights(tmp_path: Path, ended_early: Expected):
    job = second_run(tmp_path, *ENDED_EARLY)
    assert finish(start(train_and_die, job.spec, RESULT)) == -signal.SIGKILL
    found = end(job)
    assert found[1].resumed_at_step == 22
    assert_same_end(found, ended_early.end)


def test_a_run_stopped_just_before_it_would_have_ended_ends_at_that_step(tmp_path: Path, ended_early: Expected):
    """The evaluation that ends it is left to the next attempt, which finds a partial checkpoint of this very step."""
    job = second_run(tmp_path, *ENDED_EARLY)
    job.store.write(f"{job.spec.attempt_prefix}/spec.json", job.spec.to_json())
    assert run_ranks(1, work, job.spec, (0,), Kill(STEP, 6, act=be_told_to_stop)) == [CANCELLED]
    found = end(job)
    assert found[1].resumed_at_step == 22
    assert_same_end(found, ended_early.end)


@pytest.mark.parametrize("settings", [AVERAGED, ENDED_EARLY], ids=["averaged", "ended early"])
def test_two_workers_end_like_one_also_after_a_kill(
    tmp_path: Path, averaged: Expected, ended_early: Expected, settings: tuple[str, ...]
):
    alone = (averaged if settings == AVERAGED else ended_early).end[1]
    ends: list[End] = []
    for folder, at in ((tmp_path / "unbroken", None), (tmp_path / "killed", Kill(COMMITTED, 2))):
        job = second_run(folder, *settings, "train.workers=2")
        if at is not None:
            with pytest.raises(EOFError):  # rank 0 was killed, rank 1 noticed
                run_ranks(2, train_rank_and_die, job.spec, at)
        first, second = run_ranks(2, train_as_rank, job)
        assert first == second.model_copy(update={"pairs_per_second": first.pairs_per_second})
        ends.append((DirectoryStore(Path(job.store.uri)), first))
    assert_same_end(ends[1], ends[0])
    together = ends[0][1]
    assert [point.metrics["loss"] for point in together.losses] == pytest.approx(
        [point.metrics["loss"] for point in alone.losses], rel=1e-3
    )
    assert (together.last_step, together.kept_step) == (alone.last_step, alone.kept_step)

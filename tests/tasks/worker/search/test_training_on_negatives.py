"""Training with hard negatives: it ends the same however it got there."""

import signal
from pathlib import Path

import pytest
import torch

from tasks.contracts.outcomes import TrainOutcome
from tasks.worker import train
from tasks.worker.process.job import Job
from tests.support.models.mined import SETTINGS, Made, make_mined
from tests.support.processes.ends import train_as_rank
from tests.support.processes.kills import Kill, train_and_die
from tests.support.processes.ranks import finish, run_ranks, start
from tests.support.workspace.jobs import make_job, tensors_of, tiny_config

# Every new state at once: mined items, a scale that is learnt, both directions.
CONFIG = tiny_config(*SETTINGS, "heads.contrastive.symmetric=true", "heads.contrastive.temperature=learnt")


def job_in(made: Made) -> Job:
    return make_job(made.store, CONFIG, made.inputs, run_key="mining")


def trained(folder: Path) -> tuple[Made, TrainOutcome]:
    made = make_mined(folder)
    return made, train.run(job_in(made))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, TrainOutcome]:
    return trained(tmp_path_factory.mktemp("unbroken"))


def test_a_killed_run_mines_once_and_ends_with_the_same_weights(tmp_path: Path, unbroken: tuple[Made, TrainOutcome]):
    made = make_mined(tmp_path)
    job = job_in(made)
    at = Kill("tasks.worker.training.loop:LoopRecorder.losses_if_due", 7)
    assert finish(start(train_and_die, job.spec, at)) == -signal.SIGKILL
    outcome = train.run(job)
    assert outcome.resumed_at_step in (8, 12), "the last checkpoint may not have been written"
    assert outcome.mined is not None
    assert outcome.mined.embedded == 0, "they were kept"
    assert outcome.checkpoint == unbroken[1].checkpoint, "the sum is over all bytes of weights, optimiser and state"


def test_two_workers_give_the_losses_of_one(tmp_path: Path, unbroken: tuple[Made, TrainOutcome]):
    made = make_mined(tmp_path)
    first, _ = run_ranks(2, train_as_rank, job_in(made))
    for ours, theirs in zip(first.losses, unbroken[1].losses, strict=True):
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-4)
    scales = [tensors_of(where.store, end.checkpoint)["scale.logit"] for where, end in (unbroken, (made, first))]
    torch.testing.assert_close(scales[1], scales[0], rtol=1e-3, atol=1e-6)


def test_negatives_make_the_loss_harder_and_a_run_before_the_first_release_has_room_for_none(
    tmp_path: Path, unbroken: tuple[Made, TrainOutcome]
):
    outcome, made = unbroken[1], make_mined(tmp_path)
    inputs = made.inputs.model_copy(update={"mined": None})
    before = train.run(make_job(made.store, CONFIG, inputs, run_key="first"))
    assert before.mined is None
    assert outcome.mined is not None
    assert outcome.mined.pairs > 0
    assert before.tokens is not None
    assert outcome.tokens is not None
    assert before.tokens.computed < outcome.tokens.computed
    assert outcome.tokens.cut == 0
    assert outcome.losses[0].metrics["contrastive"] > 1.1 * before.losses[0].metrics["contrastive"]

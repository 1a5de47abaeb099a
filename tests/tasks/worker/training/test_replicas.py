"""The workers hold the same weights in every precision, and copies that differ are found at the next checkpoint."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from infra.store.manifest import read_manifest
from tasks.worker.devices.base import Precision
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint_interval import Replicas, checksum
from tests.faults.test_resume import COMMITTED
from tests.support.processes.ends import LAST_STEP, End, assert_same_end, job_of
from tests.support.processes.kills import Kill, train_rank_and_die
from tests.support.processes.ranks import run_ranks
from tests.support.processes.replicas import Plant, Told, flip_a_bit, train_and_tell, train_with_plant
from tests.support.workspace.jobs import make_workspace, tensors_of

PRECISIONS = get_args(Precision)
WORD = "encoder.embeddings.word_embeddings.weight"
AVERAGE = "train.averaging={ema_half_life_steps: 4}"


@pytest.mark.parametrize("weight", [torch.ones(3, 4), torch.ones(3, 4, dtype=torch.bfloat16), torch.tensor(1.0)])
def test_each_bit_of_each_kind_of_weights_counts(weight: torch.Tensor):
    before = checksum(weight)
    assert checksum(weight.clone()) == before
    flip_a_bit(weight)
    assert checksum(weight) != before


def test_weights_in_another_order_differ():
    assert checksum(torch.tensor([1.0, 2.0])) != checksum(torch.tensor([2.0, 1.0]))


def test_one_worker_has_nothing_to_compare_with():
    Replicas({"the model's": nn.Linear(2, 2)}, CpuAccelerator(Rank(0, 1, 0))).compare(5)


def assert_equal_weights(first: Told, second: Told, end: End) -> None:
    """The same on both workers, bit for bit, and in the checkpoint."""
    written = tensors_of(end[0], end[1].checkpoint)
    assert first.weights.keys() == written.keys()
    for name, value in written.items():
        assert np.array_equal(first.weights[name], second.weights[name])
        assert np.array_equal(first.weights[name], value.numpy())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_workers_hold_the_same_weights_after_a_kill_too(tmp_path: Path, precision: str):
    settings = ("train.workers=2", "model.dropout=0.1", f"train.precision={precision}")
    ends: list[End] = []
    for folder, at in ((tmp_path / "unbroken", None), (tmp_path / "killed", Kill(COMMITTED, 2))):
        store, rows = make_workspace(folder)
        job = job_of(store, rows, *settings)
        if at is not None:
            with pytest.raises(EOFError):  # rank 0 was killed, rank 1 noticed
                run_ranks(2, train_rank_and_die, job.spec, at)
        first, second = run_ranks(2, train_and_tell, job)
        ends.append((store, first.outcome))
        assert_equal_weights(first, second, ends[-1])
        steps = LAST_STEP - (first.outcome.resumed_at_step or 0)
        assert len(first.seeds) == len(second.seeds) == steps
        for (dropout, rounding), (others, also) in zip(first.seeds, second.seeds, strict=True):
            assert dropout != others, "each worker drops other units"
            assert rounding == also, "but weights are rounded alike"
            assert rounding not in (dropout, others)
    assert first.outcome.precision == precision
    assert first.encoder == {torch.bfloat16 if precision == "bf16-weights" else torch.float32}
    assert ends[1][1].resumed_at_step == 6
    assert_same_end(ends[1], ends[0])


@pytest.mark.proof
@pytest.mark.parametrize("precision", PRECISIONS)
def test_400_steps_of_two_workers_with_a_kill_end_as_those_without(tmp_path: Path, precision: str):
    settings = (
        "train.workers=2", "train.epochs=50", "train.checkpoint_every=50 steps", "train.log_every_steps=25",
        "train.evaluate_every_steps=100", "model.dropout=0.1", f"train.precision={precision}",
    )  # fmt: skip
    ends: list[End] = []
    for folder, at in ((tmp_path / "unbroken", None), (tmp_path / "killed", Kill(COMMITTED, 4))):
        store, rows = make_workspace(folder)
        job = job_of(store, rows, *settings)
        if at is not None:
            with pytest.raises(EOFError):
                run_ranks(2, train_rank_and_die, job.spec, at)
        first, second = run_ranks(2, train_and_tell, job)
        ends.append((store, first.outcome))
        assert_equal_weights(first, second, ends[-1])
    assert (ends[1][1].resumed_at_step, ends[1][1].last_step) == (200, 400)
    assert_same_end(ends[1], ends[0])


@pytest.mark.parametrize(
    ("plant", "settings", "found"),
    [
        (Plant(6, 1, WORD), (), 6),
        (Plant(4, 0, WORD), ("train.precision=bf16-weights",), 6),
        (Plant(LAST_STEP, 1, "encoder.embeddings.LayerNorm.weight"), (), LAST_STEP),
        (Plant(8, 1, WORD, stopped=True), (), 8),
        (Plant(6, 1, WORD, averaged=True), (AVERAGE,), 6),
    ],
    ids=["right before a checkpoint", "two steps before", "at the last step", "before SIGTERM", "in the average"],
)
def test_one_other_bit_on_one_worker_is_found_at_the_next_checkpoint(
    tmp_path: Path, plant: Plant, settings: tuple[str, ...], found: int
):
    store, rows = make_workspace(tmp_path)
    job = job_of(store, rows, "train.workers=2", *settings)
    whose = "the average's" if plant.averaged else "the model's"
    message = (
        rf"CodeError: the workers' copies of the weights differ at step {found}, in 1 of \d+ tensors, first in "
        rf"{whose} {plant.parameter}: worker 0 holds one, worker 1 holds another.*train\.precision=bf16"
    )
    with pytest.raises(AssertionError, match=message):
        run_ranks(2, train_with_plant, job, plant)
    written = sorted({key.split("/")[2] for key in store.list("lineages/main") if key.endswith("MANIFEST.json")})
    steps = [read_manifest(store, f"lineages/main/{name}").facts["step"] for name in written]
    assert steps == [step for step in (3, 6, 9, 12, 15) if step < found][-2:], "those before it stay"

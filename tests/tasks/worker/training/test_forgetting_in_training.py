"""Whole runs with what is against forgetting; that they end the same after a kill is in tests/faults."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import HoldoutRule, RowsRef
from tasks.data.holdout import split_holdout
from tasks.worker import train
from tasks.worker.training.holdout import Holdout, HoldoutResults
from tasks.worker.training.training_rows import read_development_rows, read_training_rows
from tests.support.workspace.jobs import (
    FEATURES,
    all_rows,
    make_job,
    make_workspace,
    tensors_of,
    tiny_config,
    train_model,
    write_rows,
)

AVERAGE = "train.averaging={ema_half_life_steps: 3}"
MERGE = "train.averaging={merge_with_parent: 0.25}"
KEEP_BEST = "train.keep_best={metric: mrr@10, rows: 1000, patience: null}"


class Lineage(NamedTuple):
    """A first run with the plain settings, and the rows of the next."""

    store: DirectoryStore
    rows: RowsRef
    later: RowsRef
    first: TrainOutcome

    def next(self, run_key: str, *settings: str, parent: TrainOutcome | None = None) -> TrainOutcome:
        config = tiny_config(*FEATURES, f"lineage={run_key}", *settings)
        inputs = TrainInputs(rows=(self.later,), history=(self.rows,), parent=(parent or self.first).checkpoint)
        return train.run(make_job(self.store, config, inputs, run_key=run_key))

    def weights(self, outcome: TrainOutcome, file: str = "model") -> dict[str, torch.Tensor]:
        return tensors_of(self.store, outcome.checkpoint, file)


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    folder = tmp_path_factory.mktemp("retention")
    store, rows = make_workspace(folder)
    later = write_rows(store, "2026-02", 100, folder)
    return Lineage(store, rows, later, train_model(store, tiny_config(*FEATURES), rows))


@pytest.fixture(scope="module")
def plain(lineage: Lineage) -> TrainOutcome:
    return lineage.next("plain")


@pytest.fixture(scope="module")
def averaged(lineage: Lineage) -> TrainOutcome:
    return lineage.next("averaged", AVERAGE)


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(expected)
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_a_running_average_changes_nothing_of_the_training(
    lineage: Lineage, plain: TrainOutcome, averaged: TrainOutcome
):
    assert averaged.losses == plain.losses
    assert_equal(lineage.weights(averaged, "trained"), lineage.weights(plain))
    assert_equal(lineage.weights(averaged, "optimizer"), lineage.weights(plain, "optimizer"))


def test_the_average_is_what_is_evaluated_and_released(lineage: Lineage, plain: TrainOutcome, averaged: TrainOutcome):
    assert averaged.curve[0] == plain.curve[0], "before the first step"
    assert averaged.curve[-1] != plain.curve[-1]
    name = "encoder.embeddings.word_embeddings.weight"
    before, released, trained = (
        lineage.weights(lineage.first)[name],
        lineage.weights(averaged)[name],
        lineage.weights(averaged, "trained")[name],
    )
    assert 0 < (released - trained).norm() < (before - trained).norm()


def test_the_next_run_is_trained_from_the_weights_and_goes_on_with_the_average(
    lineage: Lineage, plain: TrainOutcome, averaged: TrainOutcome
):
    after_plain = lineage.next("after-plain", parent=plain)
    after = lineage.next("after-averaged", AVERAGE, parent=averaged)
    assert after.losses == after_plain.losses
    assert after.curve[0].metrics == averaged.curve[-1].metrics, "it begins where the average was"
    turned_off = lineage.next("turned-off", parent=averaged)
    assert_equal(lineage.weights(turned_off), lineage.weights(after_plain))


def test_a_merge_is_exact_and_the_parent_of_the_next_run(lineage: Lineage, plain: TrainOutcome):
    found = lineage.next("merged", MERGE)
    first, own, merged = (lineage.weights(outcome) for outcome in (lineage.first, plain, found))
    expected = {name: torch.lerp(own[name], first[name], 0.25) for name in own}
    assert_equal(merged, expected)
    assert found.losses == plain.losses
    with pytest.raises(FileNotFoundError):
        lineage.weights(found, "trained")


def test_random_weights_are_not_merged_with(tmp_path: Path, lineage: Lineage):
    store, rows = make_workspace(tmp_path)
    first = train_model(store, tiny_config(*FEATURES, MERGE), rows)
    assert_equal(tensors_of(store, first.checkpoint), lineage.weights(lineage.first))


def test_development_rows_are_neither_trained_on_nor_held_out(lineage: Lineage):
    config = tiny_config(*FEATURES, KEEP_BEST)
    inputs = TrainInputs(rows=(lineage.later,), history=(lineage.rows,), parent=None)
    job = make_job(lineage.store, config, inputs)
    training, _ = read_training_rows(job, inputs)
    development = read_development_rows(job, inputs)
    assert development is not None
    own = {row_id for table in training for row_id in table["row_id"].to_pylist()}
    others = set(development["row_id"].to_pylist())
    sides = split_holdout(all_rows(lineage.store, [lineage.later], config), HoldoutRule.of(config.evaluate))
    assert own | others == set(sides.training["row_id"].to_pylist())
    assert not own & others
    assert 0 < len(others) < 0.3 * len(own)


def test_the_best_step_is_kept_with_its_optimiser(lineage: Lineage, monkeypatch: pytest.MonkeyPatch):
    """The metric on the development rows is made up: step 10 of 9 to 13 is the best. The holdout never gets better."""
    planted, judged = (0.1, 0.9, 0.2, 0.3, 0.2), []

    def made_up(self: HoldoutResults, rows: Holdout) -> dict[str, float]:
        judged.append(rows)  # the first are the holdout's, before any step
        development = sum(each is not judged[0] for each in judged)
        return {"mrr@10": 0.5 if rows is judged[0] else planted[development - 1]}

    monkeypatch.setattr(HoldoutResults, "metrics", made_up)
    best = lineage.next("best", KEEP_BEST, "train.evaluate_every_steps=1")
    assert best.kept_step == 10
    assert tuple(point.metrics["mrr@10"] for point in best.development) == planted
    assert (best.first_step, best.last_step) == (8, 13)
    counters = {float(value) for name, value in lineage.weights(best, "optimizer").items() if name.startswith("step/")}
    assert counters == {10.0}


def test_replayed_rows_are_counted(lineage: Lineage, plain: TrainOutcome):
    replayed = lineage.next("replayed", "train.replay=0.5")
    assert replayed.rows_replayed == replayed.rows_trained - plain.rows_trained
    assert replayed.rows_replayed == pytest.approx(plain.rows_trained, rel=0.3)
    assert plain.rows_replayed == 0

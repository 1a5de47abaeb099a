from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import TrainOutcome
from tasks.foundation.errors import CodeError
from tests.support.workspace.jobs import CLASSIFIER, make_workspace, tiny_config, train_model

Trained = tuple[DirectoryStore, TrainOutcome]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One run with both heads."""
    store, rows = make_workspace(tmp_path_factory.mktemp("loop"))
    return store, train_model(store, tiny_config(CLASSIFIER), rows)


def test_the_holdout_is_evaluated_first_every_n_steps_and_last(trained: Trained, tmp_path: Path):
    assert [point.step for point in trained[1].curve] == [0, 5, 8]
    store, rows = make_workspace(tmp_path)
    every_four = train_model(store, tiny_config("train.evaluate_every_steps=4"), rows)
    assert [point.step for point in every_four.curve] == [0, 4, 8]


def test_mean_losses_are_recorded_every_n_steps_at_checkpoints_and_last(tmp_path: Path):
    store, rows = make_workspace(tmp_path / "thinned")
    outcome = train_model(store, tiny_config("train.log_every_steps=3"), rows)
    assert [point.step for point in outcome.losses] == [3, 4, 6, 8]
    store, rows = make_workspace(tmp_path / "each")
    each = [point.metrics["loss"] for point in train_model(store, tiny_config(), rows).losses]
    means = [sum(each[first:last]) / (last - first) for first, last in ((0, 3), (3, 4), (4, 6), (6, 8))]
    assert [point.metrics["loss"] for point in outcome.losses] == pytest.approx(means)


def test_evaluating_does_not_change_the_training(tmp_path: Path):
    curves = []
    for number in (1, 100):
        store, rows = make_workspace(tmp_path / str(number))
        config = tiny_config(f"train.evaluate_every_steps={number}", "model.dropout=0.1")
        curves.append([point.metrics for point in train_model(store, config, rows).losses])
    assert curves[0] == curves[1]


def test_a_run_without_holdout_rows_has_no_curve(tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=20)
    outcome = train_model(store, tiny_config("evaluate.holdout_share=1e-9"), rows)
    assert outcome.curve == ()
    assert outcome.rows_trained == 20


def test_the_event_file_holds_losses_and_curve(trained: Trained):
    store, outcome = trained
    events = EventAccumulator(str(store.path("runs/run/train/attempt-1/tensorboard"))).Reload()
    for name in ("loss", "contrastive", "classification"):
        found = {event.step: event.value for event in events.Scalars(f"train/{name}")}
        assert found == pytest.approx({point.step: point.metrics[name] for point in outcome.losses})
    found = {event.step: event.value for event in events.Scalars("holdout/recall@10")}
    assert found == pytest.approx({point.step: point.metrics["recall@10"] for point in outcome.curve})


@pytest.mark.parametrize("log_every", [1, 100], ids=["seen in the loss", "seen in the weights"])
def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_every: int):
    store, rows = make_workspace(tmp_path)

    def poisoned(query: torch.Tensor, *_: object) -> torch.Tensor:
        return query.sum() * float("nan")

    monkeypatch.setattr("tasks.worker.training.losses.contrastive_part", poisoned)
    config = tiny_config(f"train.log_every_steps={log_every}", "train.checkpoint_every_steps=1")
    with pytest.raises(CodeError, match=r"at step \d.* lower train\.learning_rate"):
        train_model(store, config, rows)
    assert not store.list("lineages"), "such a checkpoint is useless"
    assert store.list("runs/run/train/attempt-1/tensorboard"), "the losses before it are kept"


def test_weights_ruined_by_the_last_step_are_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The loss of a step is measured before its update, so only the weights show it."""
    store, rows = make_workspace(tmp_path)
    monkeypatch.setattr(
        "tasks.worker.training.optimizer.learning_rate", lambda step, config: float("nan") if step == 7 else 1e-3
    )
    with pytest.raises(CodeError, match="at step 8 the weights"):
        train_model(store, tiny_config(), rows)
    complete = [key for key in store.list("lineages") if "step-00000008" in key]
    assert not complete

"""Steps of a training; a batch in chunks has the gradients of the whole batch."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from configs.schema.config import Config
from configs.schema.training import learning_rate
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import TrainOutcome
from tasks.foundation.errors import CodeError
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tasks.worker.training.batches import Batch, choose_shape, make_batch, make_plan
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.checkpoint_interval import CheckpointInterval
from tasks.worker.training.loop import GradientCache, LoopRecorder, TrainStep
from tasks.worker.training.losses import batch_losses
from tasks.worker.training.start import build_parts
from tasks.worker.training.training_rows import make_pairs
from tests.support.workspace.jobs import (
    CLASSIFIER,
    FEATURES,
    all_rows,
    make_job,
    make_workspace,
    tiny_config,
    train_model,
)
from tests.support.workspace.states import checkpoint_state

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
    folder = store.path("runs/run/train/attempt-1/tensorboard")
    (of_span,) = folder.iterdir()  # TensorBoard shows the folders as the name of the run
    assert of_span.name == "2026-01"
    events = EventAccumulator(str(of_span)).Reload()
    for name in ("loss", "contrastive", "classification"):
        found = {event.step: event.value for event in events.Scalars(f"train/{name}")}
        assert found == pytest.approx({point.step: point.metrics[name] for point in outcome.losses})
    rates = [event.value for event in events.Scalars("optimizer/learning_rate")]
    assert rates == pytest.approx([learning_rate(point.step - 1, tiny_config().train) for point in outcome.losses])
    norms = [event.value for event in events.Scalars("optimizer/gradient_norm")]
    assert len(norms) == len(rates)
    assert all(norm > 0 for norm in norms)
    assert "gradient_norm" not in outcome.losses[0].metrics
    found = {event.step: event.value for event in events.Scalars("holdout/recall@10")}
    assert found == pytest.approx({point.step: point.metrics["recall@10"] for point in outcome.curve})


@pytest.mark.parametrize("log_every", [1, 100], ids=["seen in the loss", "seen in the weights"])
def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_every: int):
    store, rows = make_workspace(tmp_path)

    def poisoned(query: torch.Tensor, *_: object) -> torch.Tensor:
        return query.sum() * float("nan")

    monkeypatch.setattr("tasks.worker.training.losses.contrastive_part", poisoned)
    config = tiny_config(f"train.log_every_steps={log_every}", "train.checkpoint_every=1 steps")
    with pytest.raises(CodeError, match=r"step \d.*learning_rate"):
        train_model(store, config, rows)
    assert not store.list("lineages"), "such a checkpoint is useless"
    assert store.list("runs/run/train/attempt-1/tensorboard"), "the losses before it are kept"


def test_weights_ruined_by_the_last_step_are_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The loss of a step is measured before its update, so only the weights show it."""
    store, rows = make_workspace(tmp_path)
    monkeypatch.setattr(
        "configs.schema.training.learning_rate", lambda step, config: float("nan") if step == 7 else 1e-3
    )
    with pytest.raises(CodeError, match="at step 8 the weights"):
        train_model(store, tiny_config(), rows)
    complete = [key for key in store.list("lineages") if "step-00000008" in key]
    assert not complete


def wishing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock finds that a checkpoint is due."""
    monkeypatch.setattr(CheckpointInterval, "has_passed", property(lambda self: True))


class Killed(BaseException):
    """The end of a worker in the middle of its training."""


def test_when_checkpoints_are_written_changes_nothing_and_a_run_goes_on_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By the clock, killed, and without any: the same checkpoint to the last byte, its records included."""
    base = ("train.log_every_steps=3", "model.dropout=0.1")
    store, rows = make_workspace(tmp_path / "none")
    undisturbed = train_model(store, tiny_config(*base, "train.checkpoint_every=1000 steps"), rows)
    assert undisturbed.checkpoints is not None
    assert undisturbed.checkpoints.written == 0
    wishing(monkeypatch)
    config = tiny_config(*base, "train.checkpoint_every=auto")
    store, rows = make_workspace(tmp_path / "whole")
    whole = train_model(store, config, rows)
    assert whole.checkpoints is not None
    assert whole.checkpoints.written == 2, "after the steps whose losses are read, but not after the last one"
    assert whole.checkpoint == undisturbed.checkpoint
    store, rows = make_workspace(tmp_path / "killed")
    with monkeypatch.context() as patch:
        taken = TrainStep.__call__

        def step(self: TrainStep, batch: Batch, number: int) -> dict[str, torch.Tensor]:
            if number == 7:
                raise Killed
            return taken(self, batch, number)

        patch.setattr(TrainStep, "__call__", step)
        with pytest.raises(Killed):
            train_model(store, config, rows)
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()
    again = train_model(store, config, rows)
    assert again.resumed_at_step == 6
    assert again.checkpoint == undisturbed.checkpoint
    assert len(store.list("lineages")) == len(DirectoryStore(tmp_path / "whole" / "workspace").list("lineages"))


@pytest.mark.parametrize("first", [True, False], ids=["the first worker wishes", "another one does"])
def test_the_first_workers_clock_decides_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool):
    """The second of two workers: the sum that it gets has the wish of the first in it."""
    accelerator = CpuAccelerator(Rank(1, 2, 1))
    sent: list[list[float]] = []

    def add_the_first(tensor: torch.Tensor) -> torch.Tensor:
        sent.append(tensor.tolist())
        return tensor + torch.tensor([1.0, 0.25, 0.0, float(first)])

    monkeypatch.setattr(accelerator, "sum", add_the_first)
    wishing(monkeypatch)
    store, rows = make_workspace(tmp_path)
    job = make_job(
        store, tiny_config("train.checkpoint_every=auto"), TrainInputs(rows=(rows,), history=(), parent=None)
    )
    interval = CheckpointInterval("auto", None, lambda: 0.0)
    state = checkpoint_state(0, complete=False)
    recorder = LoopRecorder(job, accelerator, None, None, interval, None, state, 8, tmp_path)  # type: ignore[arg-type]
    step = TrainStep(None, None, accelerator, job.config, "fp32")  # type: ignore[arg-type]
    step._names, step._sums, step._steps = ("loss", "gradient_norm"), torch.tensor([2.0, 0.25]), 1
    recorder.losses_if_due(3, step, stop=False)
    assert sent == [[2.0, 0.25, 0.0, 0.0]], "its own clock is not asked"
    assert recorder.losses[-1].metrics == {"loss": 3.0}
    assert recorder.checkpoint_due(3) is first


ALONE = Rank(0, 1, 0)
SETTINGS = (*FEATURES, CLASSIFIER, "heads.contrastive.symmetric=true", "heads.contrastive.logq=true")


def made(folder: Path, config: Config) -> tuple[ModelParts, Batch]:
    store, rows = make_workspace(folder, rows=48, distinct=20)
    table = all_rows(store, [rows], config)
    parts = build_parts(config, [table])
    torch.manual_seed(5)
    torch.nn.init.normal_(parts.model.interaction.out.weight, std=0.1)  # type: ignore[union-attr]
    pairs = make_pairs([table], parts, config)
    plan, shape = make_plan(config, 0, pairs), choose_shape(config, 0, pairs, 1)
    return parts, make_batch(pairs, plan.rows(0), plan.tokens, shape, ALONE)


def gradients(parts: ModelParts) -> dict[str, torch.Tensor]:
    return {name: one.grad.clone() for name, one in parts.model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_gradients_are_those_of_the_chunks_together(tmp_path: Path, dropout: float):
    config = tiny_config(*SETTINGS, "train.gradcache_chunks=3", f"model.dropout={dropout}")
    parts, batch = made(tmp_path, config)
    count, found = len(batch.texts.ids), []
    assert count % 3 == 0
    with open_accelerator("cpu", ALONE) as accelerator:
        chunks = GradientCache(parts.model, batch.texts, 3, accelerator, "fp32", seed=7)
        together = []  # the same chunks with the same seeds, in one graph
        for number in range(3):
            accelerator.seed(7 + (number + 1) * 7_919 * 1_000_003)
            rows = slice(number * count // 3, (number + 1) * count // 3)
            texts = {name: getattr(batch.texts, name)[rows] for name in ("ids", "segments", "positions")}
            together.append(parts.model.pool(type(batch.texts)(**{**vars(batch.texts), **texts})))
        for pooled in (torch.cat(together), chunks.pooled):
            parts.model.zero_grad()
            batch_losses(parts.model, batch, config.heads, accelerator, pooled)["loss"].backward()
            if pooled is chunks.pooled:
                chunks.backward()
            found.append(gradients(parts))
    assert set(found[0]) == set(found[1])
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    assert sum(value.abs().max() > 1e-4 for value in found[0].values()) > 20


def test_training_in_chunks_takes_the_steps_of_training_at_once(tmp_path: Path):
    losses = []
    for chunks in (1, 2):
        store, rows = make_workspace(tmp_path / str(chunks))
        config = tiny_config(*SETTINGS, f"train.gradcache_chunks={chunks}", "train.sequences=20")
        losses.append([point.metrics["loss"] for point in train_model(store, config, rows).losses])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)

"""Measures against forgetting: the best step, and averages of weights."""

import pytest
import torch
from torch import nn

from configs.schema.training import KeepBestConfig
from tasks.contracts.references import CurvePoint
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tasks.worker.training.forgetting import (
    RunningAverage,
    average_weights,
    best_step,
    ema_share,
    is_out_of_patience,
    put_weights,
)


def settings(patience: int | None = None, rows: int = 100) -> KeepBestConfig:
    return KeepBestConfig(metric="mrr@10", rows=rows, patience=patience)


def curve(*values: float) -> list[CurvePoint]:
    """At steps 5, 10, ..."""
    return [CurvePoint(step=5 * number, metrics={"mrr@10": value}) for number, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ((0.1, 0.3, 0.2), 10),
        ((0.3, 0.3, 0.2), 5),
        ((0.1,), 5),
        ((float("nan"), 0.1, float("nan")), 10),
        ((float("nan"),), None),
        ((), None),
    ],
)
def test_the_first_of_the_best_steps_is_kept(values: tuple[float, ...], step: int | None):
    assert best_step(curve(*values), settings()) == step


def test_without_the_metric_there_is_no_best_step():
    assert best_step([CurvePoint(step=5, metrics={"auc": 0.9})], settings()) is None


@pytest.mark.parametrize(
    ("values", "patience", "ended"),
    [
        ((0.1, 0.3, 0.2, 0.1), 2, True),
        ((0.1, 0.3, 0.2), 2, False),
        ((0.3, 0.3), 1, True),
        ((0.1, 0.3, 0.2, 0.1), None, False),
        ((float("nan"), float("nan")), 1, False),
    ],
)
def test_a_run_ends_after_so_many_evaluations_without_a_gain(
    values: tuple[float, ...], patience: int | None, ended: bool
):
    assert is_out_of_patience(curve(*values), settings(patience)) is ended


CPU = CpuAccelerator(Rank(0, 1, 0))


def linear(*weights: float, dtype: torch.dtype = torch.float32) -> nn.Linear:
    layer = nn.Linear(len(weights), 1, bias=False, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weights]))
    return layer


def values(average: RunningAverage) -> list[float]:
    return [value for weight in average.model.parameters() for value in weight.flatten().tolist()]


def test_a_running_average_computed_by_hand():
    """Half life of one step, far from the start: each step halves the distance to the weights."""
    average = RunningAverage(linear(0.0, 8.0), 1.0, CPU)
    for step, weights in ((100, (4.0, 8.0)), (101, (4.0, 0.0)), (102, (0.0, 0.0))):
        average.update(linear(*weights), average.share(step))
    assert values(average) == [1.5, 2.0]


def test_after_its_half_life_a_weight_counts_half():
    average = RunningAverage(linear(1.0), 50.0, CPU)
    for step in range(10_000, 10_050):
        average.update(linear(0.0), average.share(step))
    assert values(average) == pytest.approx([0.5], rel=1e-5)


def test_the_weights_of_a_new_model_are_soon_forgotten():
    average = RunningAverage(linear(1.0), 1000.0, CPU)
    for step in range(20):
        average.update(linear(0.0), average.share(step))
    assert values(average)[0] < 1e-6
    assert ema_share(0, 1000.0) == 0.9
    assert ema_share(100_000, 1000.0) == 1.0 - 0.5**0.001


def test_the_average_of_bf16_weights_is_finer_than_they_are():
    average = RunningAverage(linear(1.0), 1.0, CPU)
    average.update(linear(1.0 + 2**-7, dtype=torch.bfloat16), average.share(1000))
    assert values(average) == [1.0 + 2**-8]


def test_a_merge_is_the_weighted_mean():
    weights = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([4.0], dtype=torch.bfloat16)}
    earlier = {"a": torch.tensor([5.0, 2.0]), "b": torch.tensor([0.0])}
    found = average_weights(weights, earlier, 0.25)
    assert {name: value.tolist() for name, value in found.items()} == {"a": [2.0, 2.0], "b": [3.0]}
    assert {value.dtype for value in found.values()} == {torch.float32}


def test_weights_are_put_in_the_precision_of_the_model():
    model = linear(1.0, 2.0, dtype=torch.bfloat16)
    parameter = model.weight
    put_weights(model, {"weight": torch.tensor([[3.0, 4.001]])}, CPU)
    assert model.weight is parameter, "an optimiser knows its parameters by identity"
    assert (parameter.dtype, parameter.tolist()) == (torch.bfloat16, [[3.0, 4.0]])

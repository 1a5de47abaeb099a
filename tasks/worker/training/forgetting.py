"""Measures against forgetting: the best step of a run, and averages of weights; replay.py has the replayed rows.

Weights are averaged by an EMA during training, or merged with the run's initial weights. The EMA is evaluated and
released; training continues from the raw weights. Averages are fp32, even if the model is trained in bf16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from configs.schema.gates import METRICS
from configs.schema.training import KeepBestConfig
from tasks.contracts.references import CurvePoint
from tasks.worker.devices.base import Accelerator


def best_step(curve: Sequence[CurvePoint], settings: KeepBestConfig) -> int | None:
    """Return the first step with the best value of the metric; None if it was never measured."""
    sign = METRICS[settings.metric].sign
    measured = [(point.metrics[settings.metric], point.step) for point in curve if settings.metric in point.metrics]
    values = [(sign * value, -step) for value, step in measured if not math.isnan(value)]
    return -max(values)[1] if values else None


def is_out_of_patience(curve: Sequence[CurvePoint], settings: KeepBestConfig) -> bool:
    """Return True if the last `patience` evaluations brought no gain."""
    best = best_step(curve, settings)
    if settings.patience is None or best is None:
        return False
    return sum(point.step > best for point in curve) >= settings.patience


@dataclass(frozen=True, eq=False)
class RunningAverage:
    """An exponential moving average (EMA) of a model's weights, kept in `model` on the device."""

    model: nn.Module
    half_life_steps: float
    accelerator: Accelerator

    def share(self, step: int) -> float | torch.Tensor:
        """Return the share of the weights after global step `step`, as data, so that all steps share one graph."""
        return self.accelerator.scalar(ema_share(step, self.half_life_steps))

    @torch.no_grad()
    def update(self, trained: nn.Module, gained: float | torch.Tensor) -> None:
        """Move by the share `gained` towards the trained weights."""
        for average, weight in zip(self.model.parameters(), trained.parameters(), strict=True):
            average.add_((weight.float() - average) * gained)


def ema_share(step: int, half_life_steps: float) -> float:
    """Return the share of the weights after global step `step` (from 0) in the EMA.

    It is 1 - 2^(-1/half life), but at least 9 / (10 + step), so that a new model's random weights are soon forgotten
    (the rule of `num_updates` in TensorFlow's ExponentialMovingAverage).
    """
    return max(1.0 - 0.5 ** (1.0 / half_life_steps), 9.0 / (10.0 + step))


def average_weights(
    weights: Mapping[str, torch.Tensor], earlier: Mapping[str, torch.Tensor], share: float
) -> dict[str, torch.Tensor]:
    """Return (1 - share) * weights + share * earlier by name, like LM-Cocktail (Xiao et al. 2023, arXiv:2311.13534).

    Args:
        weights: floating point tensors on the host; `earlier` has the same names and shapes.
    """
    return {name: torch.lerp(value.float(), earlier[name].float(), share) for name, value in weights.items()}


def put_weights(model: nn.Module, weights: Mapping[str, torch.Tensor], accelerator: Accelerator) -> None:
    """Replace the weights of a model on the device, in its precision; as data, so that no graph is compiled."""
    for name, parameter in model.named_parameters():
        parameter.data = accelerator.upload(weights[name].to(parameter.dtype))

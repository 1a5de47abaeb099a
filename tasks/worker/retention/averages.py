"""Means of weights: a running one during training, and one of a run's weights with those that it began with.

The running mean is evaluated and released, and training goes on from the weights themselves. Everything here is fp32,
also where the model is trained in bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from tasks.worker.devices.base import Accelerator


@dataclass(frozen=True, eq=False)
class RunningAverage:
    """An exponential moving average of a model's weights, in `model`, which is on the device and is never trained."""

    model: nn.Module
    half_life_steps: float
    accelerator: Accelerator

    @torch.no_grad()
    def update(self, trained: nn.Module, step: int) -> None:
        """Move towards the weights after global step `step`; on compiled devices it is the same graph at every step."""
        gained = self.accelerator.scalar(gained_share(step, self.half_life_steps))
        for average, weight in zip(self.model.parameters(), trained.parameters(), strict=True):
            average.add_((weight.float() - average) * gained)


def gained_share(step: int, half_life_steps: float) -> float:
    """Return the part of the mean that the weights after global step `step` (from 0) have in it.

    It is 1 - 2^(-1/half life), but not below 9 / (10 + step): so the random weights of a new model are soon forgotten
    (the rule of `num_updates` in TensorFlow's ExponentialMovingAverage).
    """
    return max(1.0 - 0.5 ** (1.0 / half_life_steps), 9.0 / (10.0 + step))


def merged(
    weights: Mapping[str, torch.Tensor], earlier: Mapping[str, torch.Tensor], share: float
) -> dict[str, torch.Tensor]:
    """Return (1 - share) * weights + share * earlier by name, as LM-Cocktail does (Xiao et al. 2023, arXiv:2311.13534).

    Args:
        weights: floating point tensors on the host, as `earlier`, which has the same names and shapes.
    """
    return {name: torch.lerp(value.float(), earlier[name].float(), share) for name, value in weights.items()}


def put_weights(model: nn.Module, weights: Mapping[str, torch.Tensor], accelerator: Accelerator) -> None:
    """Give a model on the device other weights, in the precision that it has; as data, so no graph is made."""
    for name, parameter in model.named_parameters():
        parameter.data = accelerator.upload(weights[name].to(parameter.dtype))

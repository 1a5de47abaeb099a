"""Sums over rows and columns as matrix products with ones, for XLA's processor runtime.

Its own sums are slow: a step of MiniLM takes a sixth longer with them. NeuronCores sum as their compiler sees fit, and
eager processors are fast at it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

THICK = 8  # rows or columns of ones: a product with fewer is computed as a sum


class Ones:
    """Matrices of one number, sent as data: XLA turns a product with a constant back into a sum."""

    def __init__(self, upload: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._upload = upload
        self._sent: dict[tuple[int, int, float], torch.Tensor] = {}

    def __call__(self, rows: int, columns: int, value: float = 1.0) -> torch.Tensor:
        """Return float32 (rows, columns), on the device."""
        key = (rows, columns, value)
        if key not in self._sent:
            self._sent[key] = self._upload(torch.full((rows, columns), value))
        return self._sent[key]

    def sum_rows(self, values: torch.Tensor) -> torch.Tensor:
        """(N, W) -> (W,)."""
        return (self(THICK, len(values)) @ values)[0]


class Linear(torch.autograd.Function):
    """rows @ weight.T + bias; (N, inputs) -> (N, outputs), float32."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, ones: Ones) -> torch.Tensor:
        """Compute the layer."""
        ctx.ones = ones
        ctx.save_for_backward(rows, weight)
        return torch.addmm(bias, rows, weight.t())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of rows, weight and bias."""
        rows, weight = ctx.saved_tensors
        [gradient] = gradients
        return gradient @ weight, gradient.t() @ rows, ctx.ones.sum_rows(gradient), None


class Normalise(torch.autograd.Function):
    """Each row less its mean, by its deviation, times weight, plus bias; (N, W) -> (N, W), float32."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, ones: Ones
    ) -> torch.Tensor:
        """Compute the layer (Ba et al. 2016, arXiv:1607.06450)."""
        width = rows.shape[1]
        averaging = ones(width, THICK, 1.0 / width)
        centred = rows - (rows @ averaging)[:, :1]
        scale = torch.rsqrt(((centred * centred) @ averaging)[:, :1] + epsilon)
        normal = centred * scale
        ctx.ones = ones
        ctx.save_for_backward(normal, scale, weight)
        return normal * weight + bias

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of rows, weight and bias."""
        normal, scale, weight = ctx.saved_tensors
        [gradient] = gradients
        of_weight = gradient * normal
        weighing = (weight / len(weight))[:, None] * ctx.ones(1, THICK)  # the mean over a row of what weight scales
        means = (gradient @ weighing)[:, :1], (of_weight @ weighing)[:, :1]
        of_rows = scale * (gradient * weight - means[0] - normal * means[1])
        return of_rows, ctx.ones.sum_rows(of_weight), ctx.ones.sum_rows(gradient), None, None


def use_products_for_sums(model: nn.Module, upload: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Make the linear layers and the normalisations of every encoder inside `model` compute so, in fp32.

    Args:
        upload: sends a tensor of the host to the device, as data.
    """
    ones = Ones(upload)

    def linear(layer: nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.dtype != torch.float32:
            return nn.Linear.forward(layer, hidden)
        out: Any = Linear.apply(hidden.flatten(0, -2), layer.weight, layer.bias, ones)
        return out.unflatten(0, hidden.shape[:-1])

    def normalise(layer: nn.LayerNorm, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.dtype != torch.float32:
            return nn.LayerNorm.forward(layer, hidden)
        out: Any = Normalise.apply(hidden.flatten(0, -2), layer.weight, layer.bias, layer.eps, ones)
        return out.unflatten(0, hidden.shape[:-1])

    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            for layer in part.modules():
                if type(layer) is nn.Linear and layer.bias is not None:
                    layer.forward = MethodType(linear, layer)
                elif type(layer) is nn.LayerNorm and layer.bias is not None and len(layer.normalized_shape) == 1:
                    layer.forward = MethodType(normalise, layer)

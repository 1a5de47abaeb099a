"""AdamW and the learning rate, both continuing along the lineage from span to span."""

from __future__ import annotations

import torch
from torch import nn

from configs.schema import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of global step `step` (from 0): linear warmup, then peak / sqrt(1 + steps since / decay_steps).

    The inverse square root never ends, as incremental training never does; a schedule that must know its last step
    would start anew with each span.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    return float(config.learning_rate / (1 + (step - config.warmup_steps) / config.decay_steps) ** 0.5)


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW over all parameters, decaying matrices only (biases and normalisation weights are left alone)."""
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    plain = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """The optimiser's state by parameter name, `exp_avg/<name>` and so on, to be kept in a checkpoint."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = value
    return tensors


def restore_optimizer(model: nn.Module, optimizer: torch.optim.AdamW, tensors: dict[str, torch.Tensor]) -> None:
    """Put a checkpoint's optimiser state back, on the device of each parameter."""
    by_name: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        by_name.setdefault(name, {})[kind] = value
    for name, parameter in model.named_parameters():
        if name in by_name:
            state = {kind: value.to(parameter.device, copy=True) for kind, value in by_name[name].items()}
            optimizer.state[parameter] = state

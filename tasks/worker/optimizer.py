"""AdamW, over weights in fp32 or bf16, and the learning rate; both continue along the lineage from span to span."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw

from configs.schema import TrainConfig
from tasks.worker.accelerators.base import Accelerator


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of global step `step` (from 0): linear warmup, then peak / sqrt(1 + steps since / decay_steps).

    The inverse square root never ends, as incremental training never does; a schedule that must know its last step
    would start anew with each span.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    return float(config.learning_rate / (1 + (step - config.warmup_steps) / config.decay_steps) ** 0.5)


def make_optimizer(model: nn.Module, config: TrainConfig, accelerator: Accelerator) -> torch.optim.AdamW:
    """AdamW over all parameters, decaying matrices only (biases and normalisation weights are left alone)."""
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    plain = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    if any(parameter.dtype == torch.bfloat16 for parameter in model.parameters()):
        return RoundingAdamW(groups, config.learning_rate, accelerator.round_to_bf16)
    return torch.optim.AdamW(groups, lr=config.learning_rate, **dict[str, Any](accelerator.adamw_options))


class RoundingAdamW(torch.optim.AdamW):
    """AdamW for weights in bf16: state and arithmetic in fp32, and the new weights rounded stochastically.

    Rounded to the nearest, a bf16 weight would stay where it is at most steps: its neighbours are 0.4 % away.
    """

    def __init__(
        self, groups: list[dict[str, Any]], rate: float, round_to_bf16: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__(groups, lr=rate, capturable=False, foreach=False)
        self.round_to_bf16 = round_to_bf16

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0, device=parameter.device)
            state |= {name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("exp_avg", "exp_avg_sq")}
        assert parameter.grad is not None
        weights = parameter.to(torch.float32, copy=True)
        adamw(
            [weights],
            [parameter.grad.float()],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            foreach=False,
            capturable=parameter.device.type != "cpu",
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        parameter.copy_(weights if parameter.dtype == torch.float32 else self.round_to_bf16(weights))


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """Copies on the host of the optimiser's state, `exp_avg/<name>` and so on, to be kept in a checkpoint.

    State of a parameter that no step has touched is left out: some devices make it beforehand, others do not.
    """
    tensors = {}
    for name, parameter in model.named_parameters():
        state = {key: value.detach().cpu().clone() for key, value in optimizer.state.get(parameter, {}).items()}
        if state and state["step"].item() > 0:
            tensors |= {f"{key}/{name}": value for key, value in state.items()}
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

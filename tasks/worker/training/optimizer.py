"""AdamW for weights in fp32 or bf16, at the learning rate of the schedule, from span to span of a lineage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from configs.schema.training import TrainConfig, rate_in_run
from tasks.worker.devices.base import Accelerator


def set_rates(optimizer: torch.optim.AdamW, step: int, steps: range, config: TrainConfig) -> None:
    """Set the learning rate of each parameter group for global step `step` of a run over `steps`."""
    rate = rate_in_run(step, steps, config)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_factor"]


def make_optimizer(
    model: nn.Module, config: TrainConfig, accelerator: Accelerator, rate_factors: Mapping[str, float] | None = None
) -> torch.optim.AdamW:
    """Return AdamW over all parameters; only matrices decay, not biases and normalisation weights.

    Args:
        rate_factors: factor of `train.learning_rate` by name prefix of the weights, e.g. `classifier`.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {(1.0, config.weight_decay): [], (1.0, 0.0): []}
    for name, parameter in model.named_parameters():
        factor = next((each for part, each in (rate_factors or {}).items() if name.startswith(f"{part}.")), 1.0)
        decay = config.weight_decay if parameter.ndim >= 2 else 0.0
        groups.setdefault((factor, decay), []).append(parameter)
    described = [
        {"params": parameters, "weight_decay": decay, "rate_factor": factor}
        for (factor, decay), parameters in groups.items()
    ]
    in_bf16 = any(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    if in_bf16 or accelerator.graphs is not None:
        return HostCountedAdamW(described, config.learning_rate, accelerator)
    return torch.optim.AdamW(described, lr=config.learning_rate, **accelerator.adamw_options)  # type: ignore[arg-type]


class HostCountedAdamW(torch.optim.AdamW):
    """AdamW with its step count on the host, for compiled devices and for weights in bf16.

    torch's own version for such devices computes 1 - beta2^t on the device in fp32, which loses significant digits in
    the first hundreds of steps. Here the host computes it in double precision and sends it as data, so that all steps
    share one graph.

    Arithmetic and state are fp32 even for weights in bf16, which are rounded stochastically: rounded to nearest, they
    would not change at most steps, because the next bf16 number is 0.4 % away.
    """

    def __init__(self, groups: list[dict[str, Any]], rate: float, accelerator: Accelerator) -> None:
        super().__init__(groups, lr=rate, foreach=False)
        self.accelerator = accelerator

    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2)."""
        self.apply(self.count())

    def count(self) -> list[Update]:
        """Count the step on the host, and return what `apply` needs: its numbers, as data."""
        updates = []
        for group in self.param_groups:
            numbers: dict[float, _Numbers] = {}  # by step count; only new parameters have another count
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    moments = ("exp_avg", "exp_avg_sq")
                    state |= {name: torch.zeros_like(parameter, dtype=torch.float32) for name in moments}
                    state["step"] = torch.tensor(0.0)
                state["step"] += 1
                count = state["step"].item()
                if count not in numbers:
                    numbers[count] = self._numbers(group, count)
                (beta1, beta2), mean, square = group["betas"], state["exp_avg"], state["exp_avg_sq"]
                updates.append(Update(parameter, mean, square, numbers[count], beta1, beta2, group["eps"]))
        return updates

    @torch.no_grad()
    def apply(self, updates: list[Update]) -> None:
        """Update the parameters, on the device alone; for a graph that all steps share."""
        for each in updates:
            assert each.parameter.grad is not None
            gradient = each.parameter.grad.float()
            each.mean.lerp_(gradient, 1.0 - each.beta1)
            each.square.mul_(each.beta2).addcmul_(gradient, gradient, value=1.0 - each.beta2)
            direction = each.mean / (each.square.sqrt() / each.numbers.root + each.epsilon)
            weights = each.parameter.float() * each.numbers.kept - direction * each.numbers.rate
            in_fp32 = each.parameter.dtype == torch.float32
            each.parameter.copy_(weights if in_fp32 else self.accelerator.round_to_bf16(weights))

    def _numbers(self, group: dict[str, Any], count: float) -> _Numbers:
        beta1, beta2 = group["betas"]
        scalar = self.accelerator.scalar
        return _Numbers(
            kept=scalar(1.0 - group["lr"] * group["weight_decay"]),
            rate=scalar(group["lr"] / (1.0 - beta1**count)),
            root=scalar(math.sqrt(1.0 - beta2**count)),
        )


class _Numbers(NamedTuple):
    """Numbers that change with each step: the factor of weight decay, the rate, and sqrt(1 - beta2^t)."""

    kept: float | torch.Tensor
    rate: float | torch.Tensor
    root: float | torch.Tensor


class Update(NamedTuple):
    """One parameter's step: its moments, float32, and its numbers; the gradient is the parameter's."""

    parameter: nn.Parameter
    mean: torch.Tensor
    square: torch.Tensor
    numbers: _Numbers
    beta1: float
    beta2: float
    epsilon: float


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """Return host copies of the optimiser's state for a checkpoint: `exp_avg/<name>` and so on.

    State of parameters without a step is left out: some devices create it before the first step, others do not.
    """
    tensors = {}
    for name, parameter in model.named_parameters():
        state = {key: value.detach().cpu().clone() for key, value in optimizer.state.get(parameter, {}).items()}
        if state and state["step"].item() > 0:
            tensors |= {f"{key}/{name}": value for key, value in state.items()}
    return tensors


def restore_optimizer(model: nn.Module, optimizer: torch.optim.AdamW, tensors: dict[str, torch.Tensor]) -> None:
    """Restore the optimiser state of a checkpoint on each parameter's device; HostCountedAdamW counts on the host.

    Rows that a parameter has gained since then start with zeros.
    """
    by_name: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        by_name.setdefault(name, {})[kind] = value
    for name, parameter in model.named_parameters():
        if name in by_name:
            held = {kind: _with_new_rows(value, parameter) for kind, value in by_name[name].items()}
            state = {kind: value.to(parameter.device, copy=True) for kind, value in held.items()}
            if isinstance(optimizer, HostCountedAdamW):
                state["step"] = by_name[name]["step"].clone()
            optimizer.state[parameter] = state


def _with_new_rows(state: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """Pad the state with zero rows to the parameter's size; a step count is returned as it is."""
    missing = parameter.shape[0] - state.shape[0] if state.ndim and parameter.ndim else 0
    return state if missing <= 0 else torch.cat([state, state.new_zeros(missing, *state.shape[1:])])

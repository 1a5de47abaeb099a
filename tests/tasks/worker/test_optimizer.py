import itertools
import math

import pytest
import torch
from torch import nn

from tasks.worker.accelerators.cpu import CpuAccelerator
from tasks.worker.job import Rank
from tasks.worker.optimizer import learning_rate, make_optimizer, optimizer_tensors, restore_optimizer
from tests.support.jobs import tiny_config

CPU = CpuAccelerator(Rank(0, 1, 0))
CONFIG = tiny_config("train.learning_rate=0.01", "train.warmup_steps=10", "train.decay_steps=100").train


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.001),
        (4, 0.005),
        (9, 0.01),
        (10, 0.01),
        (110, 0.01 / math.sqrt(2)),
        (310, 0.01 / 2),
        (9910, 0.001),
    ],
)
def test_the_rate_by_hand(step: int, rate: float):
    assert learning_rate(step, CONFIG) == pytest.approx(rate)


def test_the_rate_has_no_jump_at_the_end_of_the_warmup():
    rates = [learning_rate(step, CONFIG) for step in range(200)]
    assert max(abs(later - earlier) for earlier, later in itertools.pairwise(rates)) <= 0.001 + 1e-12
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)


def test_without_warmup_the_first_step_has_the_peak():
    config = tiny_config("train.learning_rate=0.01", "train.warmup_steps=0").train
    assert learning_rate(0, config) == 0.01


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))


def take_steps(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for number in range(steps):
        optimizer.zero_grad()
        net(torch.linspace(-1, 1, 6).view(2, 3) + number).square().sum().backward()
        optimizer.step()


def test_only_matrices_decay():
    net = model()
    optimizer = make_optimizer(net, tiny_config("train.weight_decay=0.5", "train.learning_rate=0.1").train, CPU)
    before = {name: value.clone() for name, value in net.named_parameters()}
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in net.named_parameters():
        factor = 0.95 if parameter.ndim == 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_a_restored_optimiser_goes_on_bit_for_bit():
    net = model()
    optimizer = make_optimizer(net, CONFIG, CPU)
    take_steps(net, optimizer, 3)
    other = model()
    other.load_state_dict(net.state_dict())
    restored = make_optimizer(other, CONFIG, CPU)
    restore_optimizer(other, restored, optimizer_tensors(net, optimizer))
    take_steps(net, optimizer, 2)
    take_steps(other, restored, 2)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_what_is_restored_is_a_copy():
    net = model()
    optimizer = make_optimizer(net, CONFIG, CPU)
    take_steps(net, optimizer, 1)
    kept = {name: value.clone() for name, value in optimizer_tensors(net, optimizer).items()}
    untouched = {name: value.clone() for name, value in kept.items()}
    restore_optimizer(net, optimizer, kept)
    take_steps(net, optimizer, 1)
    assert all(torch.equal(kept[name], untouched[name]) for name in kept)


def test_a_parameter_that_never_had_a_gradient_has_no_state():
    net = model()
    for parameter in net[0].parameters():
        parameter.requires_grad_(False)
    optimizer = make_optimizer(net, CONFIG, CPU)
    take_steps(net, optimizer, 1)
    names = {name.partition("/")[2] for name in optimizer_tensors(net, optimizer)}
    assert names == {"1.weight", "1.bias", "2.weight", "2.bias"}

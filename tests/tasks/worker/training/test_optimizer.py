import itertools
import math

import pytest
import torch
from torch import nn

from configs.schema.training import DecayConfig, TrainConfig, decay_factor, learning_rate
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tasks.worker.training.optimizer import (
    HostCountedAdamW,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_rates,
)
from tests.support.workspace.jobs import tiny_config

CPU = CpuAccelerator(Rank(0, 1, 0))
CONFIG = tiny_config(
    "train.learning_rate=0.01", "train.warmup_steps=10", "train.decay_steps=100", "train.learning_rate_floor=0"
).train


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
def test_the_rate_at_known_steps(step: int, rate: float):
    assert learning_rate(step, CONFIG) == pytest.approx(rate)


def test_the_rate_stops_falling_at_the_floor_and_never_was_below_the_schedule():
    config = CONFIG.model_copy(update={"learning_rate_floor": 0.4})
    steps = range(10, 1000)
    assert [learning_rate(step, config) for step in steps] == [max(learning_rate(s, CONFIG), 0.004) for s in steps]
    assert learning_rate(10**6, config) == pytest.approx(0.004)
    assert learning_rate(0, config) == learning_rate(0, CONFIG), "the warmup begins below it"


def test_the_rate_has_no_jump_at_the_end_of_the_warmup():
    rates = [learning_rate(step, CONFIG) for step in range(200)]
    assert max(abs(later - earlier) for earlier, later in itertools.pairwise(rates)) <= 0.001 + 1e-12
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)


def test_without_warmup_the_first_step_has_the_peak():
    config = tiny_config("train.learning_rate=0.01", "train.warmup_steps=0").train
    assert learning_rate(0, config) == 0.01


@pytest.mark.parametrize(
    ("step", "factor"),
    [(100, 1.0), (115, 1.0), (116, 0.8), (117, 0.6), (118, 0.4), (119, 0.2), (99, 1.0)],
)
def test_the_rate_falls_linearly_to_the_floor_at_the_last_step_of_a_run(step: int, factor: float):
    settings = DecayConfig(share=0.2, floor=0.2)
    assert decay_factor(step, range(100, 120), settings) == pytest.approx(factor)
    assert decay_factor(step, range(100, 120), None) == 1.0


def test_the_next_run_has_the_rate_of_the_schedule():
    settings = DecayConfig(share=0.5, floor=0.1)
    assert decay_factor(119, range(100, 120), settings) == pytest.approx(0.1)
    assert decay_factor(120, range(120, 140), settings) == 1.0
    assert decay_factor(120, range(120, 121), settings) == pytest.approx(0.1), "a run of one step has nothing else"


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


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


def test_a_part_of_the_model_may_have_a_rate_of_its_own():
    net = model()
    optimizer = make_optimizer(net, CONFIG, CPU, {"2": 50.0})
    set_rates(optimizer, 10, range(20), CONFIG)
    before = {name: value.clone() for name, value in net.named_parameters()}
    take_steps(net, optimizer, 1)
    moved = {name: (value - before[name]).abs().max().item() for name, value in net.named_parameters()}
    assert moved["0.weight"] == pytest.approx(0.01, rel=0.1), "AdamW's first step has the length of the rate"
    assert moved["2.weight"] == pytest.approx(0.5, rel=0.1)
    assert moved["2.bias"] == pytest.approx(0.5, rel=0.1)
    other = make_optimizer(net, CONFIG, CPU, {"2": 50.0})
    restore_optimizer(net, other, optimizer_tensors(net, optimizer))
    assert other.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()


def test_a_restored_optimiser_continues_bit_for_bit():
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


def test_restoring_copies_the_tensors():
    net = model()
    optimizer = make_optimizer(net, CONFIG, CPU)
    take_steps(net, optimizer, 1)
    kept = {name: value.clone() for name, value in optimizer_tensors(net, optimizer).items()}
    untouched = {name: value.clone() for name, value in kept.items()}
    restore_optimizer(net, optimizer, kept)
    take_steps(net, optimizer, 1)
    assert all(torch.equal(kept[name], untouched[name]) for name in kept)


def test_a_parameter_without_a_gradient_has_no_state():
    net = model()
    for parameter in net[0].parameters():
        parameter.requires_grad_(False)
    optimizer = make_optimizer(net, CONFIG, CPU)
    take_steps(net, optimizer, 1)
    names = {name.partition("/")[2] for name in optimizer_tensors(net, optimizer)}
    assert names == {"1.weight", "1.bias", "2.weight", "2.bias"}


def host_counted(net: torch.nn.Module, config: TrainConfig) -> HostCountedAdamW:
    by_decay = {ndim: [p for p in net.parameters() if (p.ndim >= 2) is ndim] for ndim in (True, False)}
    groups = [
        {"params": by_decay[True], "weight_decay": config.weight_decay},
        {"params": by_decay[False], "weight_decay": 0.0},
    ]
    return HostCountedAdamW(groups, config.learning_rate, CPU)


def test_the_host_counted_optimiser_equals_torchs_adamw():
    config = tiny_config("train.weight_decay=0.5", "train.learning_rate=0.05").train
    torchs, ours = model(), model()
    theirs, mine = make_optimizer(torchs, config, CPU), host_counted(ours, config)
    assert not isinstance(theirs, HostCountedAdamW)
    for number in range(200):
        for net, optimizer in ((torchs, theirs), (ours, mine)):
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(number, config)
            net(torch.linspace(-1, 1, 6).view(2, 3) + number % 7).square().sum().backward()
            optimizer.step()
    for left, right in zip(torchs.parameters(), ours.parameters(), strict=True):
        assert torch.allclose(left, right, rtol=1e-4, atol=1e-6)


def test_the_host_counted_state_fits_a_checkpoint_and_torchs_adamw():
    config = tiny_config().train
    net = model()
    ours = host_counted(net, config)
    net(torch.ones(2, 3)).square().sum().backward()
    ours.step()
    tensors = optimizer_tensors(net, ours)
    assert {value.dtype for value in tensors.values()} == {torch.float32}
    for optimizer in (make_optimizer(net, config, CPU), host_counted(net, config)):
        restore_optimizer(net, optimizer, tensors)
        again = optimizer_tensors(net, optimizer)
        assert {name: value.tolist() for name, value in again.items()} == {n: v.tolist() for n, v in tensors.items()}


def test_state_without_a_step_is_not_kept():
    net = model()
    optimizer = host_counted(net, tiny_config().train)
    for parameter in net.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(parameter)}
    assert optimizer_tensors(net, optimizer) == {}


def test_bf16_weights_move_by_updates_smaller_than_their_spacing():
    """Steps of 1e-3 from a weight of 1.0, whose bf16 neighbours are 4e-3 and 8e-3 away."""
    torch.manual_seed(3)
    weights = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    net = torch.nn.Module()
    net.register_parameter("weights", weights)
    config = tiny_config("train.weight_decay=0").train
    optimizer = make_optimizer(net, config, CPU)
    assert isinstance(optimizer, HostCountedAdamW)
    for _ in range(20):
        weights.grad = torch.ones_like(weights)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        optimizer.step()
    assert weights.dtype == torch.bfloat16
    assert weights.float().mean().item() == pytest.approx(1 - 20e-3, abs=1e-3)
    assert optimizer.state[weights]["exp_avg"].dtype == torch.float32


def test_rounding_to_bf16_is_right_on_average_and_exact_where_it_can_be():
    torch.manual_seed(5)
    between = torch.full((40_000,), 1.0 + 2**-9)  # a quarter of the way from 1 to the next, 1 + 2^-7
    rounded = CPU.round_to_bf16(between).float()
    assert set(rounded.tolist()) == {1.0, 1.0 + 2**-7}
    assert rounded.mean().item() == pytest.approx(1.0 + 2**-9, abs=1e-4)
    exact = torch.tensor([0.0, -1.5, 3.0, 2.0**100])
    assert CPU.round_to_bf16(exact).float().tolist() == exact.tolist()

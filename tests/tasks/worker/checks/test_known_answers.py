"""Products and collectives with one wrong number: each is found and named."""

from contextlib import nullcontext as nothing

import pytest
import torch

from tasks.foundation.errors import HostError
from tasks.worker.checks.known_answers import (
    EXACT_IN_FP32,
    SIZES,
    check_collectives,
    make_problem,
    prove_exchange,
    rates,
    time_product,
)
from tasks.worker.checks.verdicts import gflops
from tasks.worker.devices.accelerators import Accelerator, open_accelerator
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tests.support.fakes.broken import break_product
from tests.support.processes.ranks import run_ranks


@pytest.fixture
def alone() -> CpuAccelerator:
    return CpuAccelerator(Rank(0, 1, 0))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("size", [1, 33, 300])
def test_products_are_right_on_this_device(alone, precision, size):
    assert time_product(alone, make_problem(size, seed=3), precision) > 0


@pytest.mark.parametrize("size", [1, 512, 2**12, 2**20])
def test_factors_are_small_enough_for_exact_sums(monkeypatch, size):
    monkeypatch.setattr("numpy.einsum", lambda formula, left, right: left)
    monkeypatch.setattr("numpy.random.default_rng", lambda seed: HighestFactors())
    highest = int(make_problem(size, seed=0).left.max())
    assert highest > 0
    assert size * highest**2 <= EXACT_IN_FP32
    assert torch.tensor(highest).bfloat16().item() == highest


class HighestFactors:
    """A generator that always draws the highest."""

    def integers(self, low: int, high: int, shape: tuple[int, ...], endpoint: bool):
        return torch.full((2, 1, 1), high).numpy()


def test_the_answer_is_the_integer_product_and_the_seed_decides():
    problem = make_problem(20, seed=3)
    assert problem.answer.dtype == torch.int64
    assert torch.equal(problem.left @ problem.right, problem.answer)
    assert torch.equal(make_problem(20, seed=3).left, problem.left)
    assert not torch.equal(make_problem(20, seed=4).left, problem.left)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("at_call", [1, 2, 6])
@pytest.mark.parametrize("value", [float("nan"), 4096.0])
def test_a_wrong_element_of_any_product_is_found_and_named(alone, monkeypatch, precision, at_call, value):
    problem = make_problem(64, seed=3)
    break_product(monkeypatch, at_call, value)
    complaint = r"worker 0 on .* multiplies wrong .*\(3, 5\) of a 64 x 64 product.*and 1 of 4096"
    with pytest.raises(HostError, match=complaint):
        time_product(alone, problem, precision)


def test_fp32_has_no_tolerance(alone, monkeypatch):
    problem = make_problem(64, seed=3)
    break_product(monkeypatch, 1, 1.0)
    with pytest.raises(HostError, match=f"expected {problem.answer[3, 5].item()}"):
        time_product(alone, problem, "fp32")


def test_gflops_count_a_product_and_a_sum_for_each_term():
    assert gflops(1000, seconds=1.0) == 2.0


NAMES = ["all-reduce", "all-gather", "reduce-scatter", "gradient sum", "gradient of all-gather"]


def check_broken(rank: Rank) -> dict[str, str]:
    """The first finding about each broken collective, which is broken the same way on each rank."""
    findings = {}
    with open_accelerator("cpu", rank) as accelerator:
        for name, (method, broken) in BROKEN.items():
            whole = getattr(Accelerator, method)
            setattr(Accelerator, method, broken(whole))
            failed = [check for check in check_collectives(accelerator) if not check.passed]
            assert {(check.action, check.severity) for check in failed} <= {("retry elsewhere", "critical")}
            findings[name] = failed[0].sentence if failed else "nothing"
            if method == "sum":
                with pytest.raises(HostError, match="over 2 workers") if "nothing" in name else nothing():
                    prove_exchange(accelerator)
            setattr(Accelerator, method, whole)
        findings["nothing broken"] = ", ".join(check.name for check in check_collectives(accelerator) if check.passed)
    return findings


def last_is_wrong(collective):
    """A collective with a wrong last element in large tensors."""

    def broken(accelerator, tensor):
        result = collective(accelerator, tensor)
        if result.numel() > 1000:
            result[-1] += 1
        return result

    return broken


def without_gradient(gather):
    return lambda accelerator, rows: gather(accelerator, rows.detach()).requires_grad_()


def own_part(scatter_sum):
    return lambda accelerator, rows: rows.chunk(accelerator.rank.world)[accelerator.rank.index]


BROKEN = {
    "a sum that does nothing": ("sum", lambda whole: lambda accelerator, tensor: tensor),
    "a sum that is wrong at the end": ("sum", last_is_wrong),
    "a gather that does nothing": ("gather", lambda whole: lambda accelerator, rows: rows),
    "a gather of the own rows": ("gather", lambda whole: lambda accelerator, rows: torch.cat([rows, rows])),
    "a gather without gradient": ("gather", without_gradient),
    "a scatter that does nothing": ("scatter_sum", lambda whole: lambda accelerator, rows: rows),
    "a scatter that does not sum": ("scatter_sum", own_part),
    "gradients that are not summed": ("reduce_gradients", lambda whole: lambda accelerator, optimizer: None),
}


@pytest.mark.shows("broken collectives")
def test_every_broken_collective_is_found_by_its_numbers():
    first, second = run_ranks(2, check_broken)
    expected = {
        "a sum that does nothing": ("all-reduce", "worker {} got {} at element 0, expected 3", (1, 2)),
        "a sum that is wrong at the end": ("all-reduce", "worker {} got {} at element 65536, expected 9", (10, 10)),
        "a gather that does nothing": ("all-gather", "worker {} got {} elements, expected 2", (1, 1)),
        "a gather of the own rows": (
            "all-gather",
            "worker {} got {}",
            ("1 at element 1, expected 2", "2 at element 0, expected 1"),
        ),
        "a gather without gradient": ("gradient of all-gather", "worker {} got {} at element 0", (0, 0)),
        "a scatter that does nothing": ("reduce-scatter", "worker {} got {} elements, expected 1", (2, 2)),
        "a scatter that does not sum": ("reduce-scatter", "worker {} got {} at element 0", (1, 4)),
        "gradients that are not summed": ("gradient sum", "worker {} got {} at element 0, expected 3", (1, 2)),
    }
    assert SIZES[-1] == 65_537
    for name, (collective, sentence, got) in expected.items():
        for rank, findings in enumerate((first, second)):
            assert findings[name].startswith(f"{collective} over 2 workers"), name
            assert sentence.format(rank, got[rank]) in findings[name], name
    assert first["nothing broken"] == second["nothing broken"] == ", ".join(NAMES)


def test_bandwidths_follow_nccl_tests():
    seconds = {"latency": 5e-6, "all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5}
    found = rates(seconds, mib=4096, world=4)
    giga = 2**32 / 1e9
    assert found == {
        "all_reduce_latency_us": 5.0,
        "all_reduce_gb_s": pytest.approx(giga, abs=1e-3),
        "all_reduce_bus_gb_s": pytest.approx(giga * 1.5, abs=1e-3),
        "all_gather_gb_s": pytest.approx(giga * 2, abs=1e-3),
        "all_gather_bus_gb_s": pytest.approx(giga * 1.5, abs=1e-3),
        "reduce_scatter_gb_s": pytest.approx(giga * 2, abs=1e-3),
        "reduce_scatter_bus_gb_s": pytest.approx(giga * 1.5, abs=1e-3),
    }

import pytest
import torch

from tasks.foundation.errors import HostError
from tasks.worker.checks.matmul_check import EXACT_IN_FP32, make_problem, time_product
from tasks.worker.checks.verdicts import gflops
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tests.support.fakes.broken import break_product


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

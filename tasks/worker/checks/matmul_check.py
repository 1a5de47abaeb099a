"""A matrix product with a known answer: checks and times a device's multiplication.

The integers are small enough that float32 holds every partial sum exactly. The answer does not depend on the order of
summation, so any difference is a fault of the device or its libraries.
"""

import math
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from tasks.foundation.errors import HostError
from tasks.runs.host_records import this_host
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.devices.base import Precision

REPEATS = 5
MAX_FACTOR = 127  # bf16 holds integers up to 256 exactly
EXACT_IN_FP32 = 2**24
BF16_BOUND = 2**-7  # one unit in the last place: exact sums in float32, then one rounding in any direction
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class MatmulProblem:
    """`left` @ `right` = `answer`, all (n, n) int64."""

    left: torch.Tensor
    right: torch.Tensor
    answer: torch.Tensor


def make_problem(size: int, seed: int) -> MatmulProblem:
    """Return seeded factors and their product in integer arithmetic (half a second for 1024 rows, four for 2048)."""
    highest = min(MAX_FACTOR, math.isqrt(EXACT_IN_FP32 // size))
    factors = np.random.default_rng(seed).integers(-highest, highest, (2, size, size), endpoint=True)
    answer = np.einsum("ij,jk->ik", *factors)  # int64 throughout, and several times faster than @ for integers
    return MatmulProblem(torch.from_numpy(factors[0]), torch.from_numpy(factors[1]), torch.from_numpy(answer))


def time_product(accelerator: Accelerator, problem: MatmulProblem, precision: Precision) -> float:
    """Return the median seconds of the product on the device, after a warm run; every result is checked.

    Raises:
        HostError: an element is wrong, in fp32 by any amount, in bf16 by more than BF16_BOUND of its value; or results
            differ between repetitions.
    """
    if accelerator.device.type == "cuda":  # else partial sums may be rounded to bf16 before they are added
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    left = problem.left.to(accelerator.device, DTYPES[precision])
    right = problem.right.to(accelerator.device, DTYPES[precision])
    first = left @ right
    _check(accelerator, problem, precision, first)
    seconds = []
    for _ in range(REPEATS):
        accelerator.synchronize()
        began = time.perf_counter()
        product = left @ right
        accelerator.synchronize()
        seconds.append(time.perf_counter() - began)
        if not torch.equal(product, first):
            _check(accelerator, problem, precision, product)
    return statistics.median(seconds)


def _check(accelerator: Accelerator, problem: MatmulProblem, precision: Precision, product: torch.Tensor) -> None:
    got = product.cpu().double()
    allowed = problem.answer.abs() * (BF16_BOUND if precision == "bf16" else 0.0)
    wrong = ~((got - problem.answer).abs() <= allowed)  # NaN counts as wrong
    if not wrong.any():
        return
    row, column = (int(index) for index in wrong.nonzero()[0])
    size, rank = len(problem.answer), accelerator.rank
    raise HostError(
        f"worker {rank.index} on {this_host()} ({accelerator.name}) multiplies wrong in {precision}: element "
        f"({row}, {column}) of a {size} x {size} product is {got[row, column].item():.10g}, expected "
        f"{problem.answer[row, column].item()}, and {int(wrong.sum())} of {size * size} elements are wrong. "
        "Take this machine out of service: its results can't be trusted"
    )

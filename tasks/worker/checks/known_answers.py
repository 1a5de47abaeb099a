"""Checks with known answers: a matrix product, and every collective that training uses; then they are timed.

The integers of the product are small enough that float32 holds every partial sum exactly. The answer does not depend on
the order of summation, so any difference is a fault of the device or its software. A collective can succeed without
moving data, e.g. if each process sees a world of one. Only numbers that differ by rank reveal it.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from tasks.contracts.outcomes import Check
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


SIZES = (1, 3, 1000, 65_537)  # elements: the smallest, odd ones, and one that takes more than one packet
LATENCY_REPEATS = 20
BANDWIDTH_REPEATS = 5
MIB = 2**20
COMPILED_SIZES = (3, 65_537)  # for devices that compile a graph for each size


def check_collectives(accelerator: Accelerator) -> tuple[Check, ...]:
    """Run each collective on integers that depend on the rank, and compare every element with the exact result.

    All values stay below 2**24 for up to 2000 workers, so float32 sums are exact in any order. A worker with
    wrong numbers continues with the others; its check names the element, expected and actual value, and the rank.
    """
    kinds = {
        "all-reduce": _check_all_reduce,
        "all-gather": _check_all_gather,
        "reduce-scatter": _check_reduce_scatter,
        "gradient sum": _check_gradient_sum,
        "gradient of all-gather": _check_gather_gradient,
    }
    return tuple(_judge(accelerator, name, check) for name, check in kinds.items())


def _judge(accelerator: Accelerator, name: str, check: Callable[[Accelerator, str, int], str]) -> Check:
    sizes = SIZES if accelerator.graphs is None else COMPILED_SIZES
    wrong = [problem for size in sizes if (problem := check(accelerator, name, size))]
    sentence = f"{name} over {accelerator.rank.world} workers is exact for {', '.join(map(str, sizes))} elements"
    return Check.critical(name, not wrong, wrong[0] if wrong else sentence, "retry elsewhere", len(wrong))


def prove_exchange(accelerator: Accelerator) -> None:
    """Check one all-reduce over the workers that will train: health may have run on other machines.

    Raises:
        HostError: the sum is wrong.
    """
    if accelerator.rank.world == 1:
        return
    accelerator.name_work("first all-reduce")
    mine = accelerator.upload(_numbers(accelerator.rank.index, COMPILED_SIZES[0]).float())
    got = accelerator.fetch(accelerator.sum(mine))
    accelerator.name_work("start")
    problem = _compare(accelerator, "all-reduce", got, _sum_over_ranks(accelerator.rank.world, COMPILED_SIZES[0]))
    if problem and not accelerator.collects_only:
        raise HostError(problem)


def time_collectives(accelerator: Accelerator, mib: int) -> dict[str, float]:
    """Return this worker's seconds of an all-reduce of 4 bytes, and of each collective over `mib` MiB in all."""
    world = accelerator.rank.world
    tiny = accelerator.upload(torch.zeros(1))
    rows = mib * MIB // 4 // world  # float32 zeros, which repeated sums don't change
    part, whole = (accelerator.upload(torch.zeros(count)) for count in (rows, world * rows))
    return {
        "latency": _median_seconds(accelerator, lambda: accelerator.sum(tiny), LATENCY_REPEATS),
        "all_reduce": _median_seconds(accelerator, lambda: accelerator.sum(whole), BANDWIDTH_REPEATS),
        "all_gather": _median_seconds(accelerator, lambda: accelerator.gather(part), BANDWIDTH_REPEATS),
        "reduce_scatter": _median_seconds(accelerator, lambda: accelerator.scatter_sum(whole), BANDWIDTH_REPEATS),
    }


def rates(seconds: dict[str, float], mib: int, world: int) -> dict[str, float]:
    """Convert the seconds of `time_collectives` to latency in microseconds and bandwidth in GB/s (1e9 bytes).

    Algorithm bandwidth is the bytes of the whole buffer over time. Bus bandwidth is the traffic of each link, which
    is comparable between numbers of workers: times 2(n-1)/n for an all-reduce, (n-1)/n for the other two
    (NVIDIA, nccl-tests, doc/PERFORMANCE.md).
    """
    moved = mib * MIB // 4 // world * world * 4
    share = (world - 1) / world
    found = {"all_reduce_latency_us": seconds["latency"] * 1e6}
    for name, factor in (("all_reduce", 2 * share), ("all_gather", share), ("reduce_scatter", share)):
        found[f"{name}_gb_s"] = moved / seconds[name] / 1e9
        found[f"{name}_bus_gb_s"] = found[f"{name}_gb_s"] * factor
    return {name: round(value, 3) for name, value in found.items()}


# Each check returns a sentence about the error, or an empty string.


def _check_all_reduce(accelerator: Accelerator, name: str, size: int) -> str:
    mine = _numbers(accelerator.rank.index, size)
    wanted = _sum_over_ranks(accelerator.rank.world, size)
    # As in training: numbers on the device, counts on the host. NeuronCores can't add integers.
    got = [accelerator.sum(accelerator.upload(mine.float())), accelerator.sum(mine.clone())]
    return next(filter(None, (_compare(accelerator, name, sums, wanted) for sums in got)), "")


def _check_all_gather(accelerator: Accelerator, name: str, size: int) -> str:
    got = accelerator.gather(_numbers(accelerator.rank.index, size).float().to(accelerator.device))
    return _compare(accelerator, name, got, torch.cat([_numbers(rank, size) for rank in range(accelerator.rank.world)]))


def _check_reduce_scatter(accelerator: Accelerator, name: str, size: int) -> str:
    rank = accelerator.rank
    got = accelerator.scatter_sum(_numbers(rank.index, rank.world * size).float().to(accelerator.device))
    wanted = _sum_over_ranks(rank.world, rank.world * size)[rank.index * size : (rank.index + 1) * size]
    return _compare(accelerator, name, got, wanted)


def _check_gradient_sum(accelerator: Accelerator, name: str, size: int) -> str:
    mine = _numbers(accelerator.rank.index, 2 * size).float().to(accelerator.device)
    parameters = [torch.nn.Parameter(torch.zeros(size, device=accelerator.device)) for _ in range(2)]
    for parameter, gradient in zip(parameters, mine.split(size), strict=True):
        parameter.grad = gradient.clone()
    accelerator.reduce_gradients(torch.optim.SGD(parameters))
    got = torch.cat([parameter.grad for parameter in parameters if parameter.grad is not None])
    return _compare(accelerator, name, got, _sum_over_ranks(accelerator.rank.world, 2 * size))


def _check_gather_gradient(accelerator: Accelerator, name: str, size: int) -> str:
    """Weight the gathered rows differently on each worker; a row's gradient is the sum of its weights."""
    rank = accelerator.rank
    rows = torch.ones(size, device=accelerator.device, requires_grad=True)
    weights = _numbers(rank.index, rank.world * size).float().to(accelerator.device)
    gathered = accelerator.gather(rows)
    if gathered.shape != weights.shape:
        return _compare(accelerator, name, gathered, weights)
    (gathered * weights).sum().backward()
    wanted = _sum_over_ranks(rank.world, rank.world * size)[rank.index * size : (rank.index + 1) * size]
    return _compare(accelerator, name, rows.grad if rows.grad is not None else torch.zeros(size), wanted)


def _numbers(rank: int, size: int) -> torch.Tensor:
    """Return (size,) int64, different for each rank."""
    return (rank + 1) * (torch.arange(size) % 7 + 1)


def _sum_over_ranks(world: int, size: int) -> torch.Tensor:
    return world * (world + 1) // 2 * (torch.arange(size) % 7 + 1)


def _compare(accelerator: Accelerator, name: str, got: torch.Tensor, wanted: torch.Tensor) -> str:
    rank, values = accelerator.rank, accelerator.fetch(got)
    where = f"{name} over {rank.world} workers, {wanted.numel()} elements of {str(got.dtype).removeprefix('torch.')}"
    advice = "The workers exchange wrong numbers; training on them would go wrong silently"
    if values.shape != wanted.shape:
        return f"{where}: worker {rank.index} got {values.numel()} elements, expected {wanted.numel()}. {advice}"
    if len(wrong := (values != wanted).nonzero()):
        first = int(wrong[0])
        return (
            f"{where}: worker {rank.index} got {values[first].item():.10g} at element {first}, expected "
            f"{wanted[first].item()}, and {len(wrong)} elements are wrong in all. {advice}"
        )
    return ""


def _median_seconds(accelerator: Accelerator, collective: Callable[[], object], repeats: int) -> float:
    """Time a collective after one warm-up call, which opens connections and compiles; all workers start together."""
    kept = collective()
    accelerator.synchronize()
    del kept
    seconds = []
    for _ in range(repeats):
        accelerator.synchronize()
        accelerator.barrier()
        began = time.perf_counter()
        kept = collective()  # a compiled device skips results that nothing references
        accelerator.synchronize()
        del kept
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)

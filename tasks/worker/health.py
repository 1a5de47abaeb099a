"""health: do these workers compute right, fast enough, with memory, disk and store, and do they hear each other?

Runs on the very processes that will train. What each rank measures is gathered, so all ranks judge the same numbers.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from configs.schema import HealthConfig
from infra.store import Conflict, DirectoryStore, Store
from tasks.contracts import Check, HealthOutcome
from tasks.errors import HostError, StoreError
from tasks.hosts import this_host
from tasks.progress import report
from tasks.worker.accelerators import Accelerator, open_accelerator
from tasks.worker.accelerators.base import Precision
from tasks.worker.collectives import check_collectives, rates, time_collectives
from tasks.worker.exchange import Part, Whole, exchange
from tasks.worker.job import Job
from tasks.worker.nodes import check_nodes, folder, forget_told
from tasks.worker.products import gflops, make_problem, time_product
from tasks.worker.verdicts import (
    conclude,
    judge_product,
    judge_rates,
    judge_space,
    judge_speed,
    machine_of,
    refuse,
    slowest_to_median,
)

GIB = 2**30


def run(job: Job) -> HealthOutcome:
    """Check everything that the workers need before they may train.

    Raises:
        HostError: a worker multiplies or communicates wrong, a machine is broken, too slow, in use, or too small.
        StoreError: the workspace can't be written, lets a conflicting write pass, or has too little disk.
        ConfigError: the machines are not of the kind that the configuration says, or their tools are not there.
    """
    limits, rank, config = job.config.health, job.rank, job.config
    before = [probe_store(job.store, f"{job.spec.attempt_prefix}/probe-rank{rank.index}")]
    _tell(job, 1, "the workspace takes writes and refuses conflicting ones")
    before += check_nodes(job)
    refuse(before)
    with open_accelerator(config.accelerator, rank, config, config.train.precision) as accelerator:
        mine = _measure(job, accelerator)
        precision = accelerator.choose_precision(config.train.precision)
        whole = exchange(
            job.store, f"{folder(job)}/workers", rank.index, rank.world, mine,
            lambda parts: _judge(job, before, parts, precision),
        )  # fmt: skip
        forget_told(job)
        refuse(whole.checks)
        accelerator.barrier()  # all have read it
    if rank.is_main:
        job.store.delete(folder(job))
    seconds = _product_seconds(whole.numbers, precision)
    speeds = tuple(gflops(limits.matmul_size, each) for each in seconds)
    _tell(job, 3, f"{min(speeds):g} GFLOP/s on the slowest worker")
    return HealthOutcome(
        device=accelerator.name,
        matmul_gflops=speeds,
        slowest_to_median=round(slowest_to_median(seconds), 3),
        free_memory_gib=tuple(round(one["memory"], 3) for one in whole.numbers),
        free_disk_gib=_least_disk(whole),
        collectives=_rates(whole.numbers, limits),
        checks=whole.checks,
    )


def probe_store(store: Store, prefix: str) -> Check:
    """Write, read back, and see that conflicting writes are refused; nothing stays below `prefix`.

    Raises:
        StoreError: one of them went wrong; names the operation.
    """
    key = f"{prefix}/probe"
    try:
        try:
            _probe(store, key)
        finally:
            store.delete(prefix)
    except OSError as error:
        raise StoreError(
            f"{store.uri}/{key}: {error}. Check that the workspace is mounted, has room, and is writable"
        ) from error
    sentence = f"{store.uri} takes writes, gives back what was written, and refuses conflicting writes"
    return Check(name="store", passed=True, severity="critical", observed=None, sentence=sentence)


def _probe(store: Store, key: str) -> None:
    first, second = b"first\n", b"second\n"
    store.write(key, first)
    if (got := store.read(key)) != first:
        raise StoreError(f"{store.uri}/{key}: {got!r} was read where {first!r} had been written")
    conflicting = {
        "create": lambda: store.create(key, second),
        "compare-and-swap": lambda: store.swap(key, second, expected=second),
    }
    for name, write in conflicting.items():
        try:
            write()
        except Conflict:
            continue
        raise StoreError(
            f"{store.uri}/{key}: {name} replaced an object that it should have left alone. "
            "Two runs could overwrite each other's release here; use a file system or bucket with conditional writes"
        )
    store.swap(key, second, expected=first)
    if (got := store.read(key)) != second:
        raise StoreError(f"{store.uri}/{key}: {got!r} was read after a compare-and-swap to {second!r}")


def _measure(job: Job, accelerator: Accelerator) -> Part:
    """What this worker finds: nothing is raised that the others would then wait for in a collective."""
    limits, rank = job.config.health, job.rank
    checks: list[Check] = []
    numbers: dict[str, float] = {}
    if rank.world > 1:
        checks += check_collectives(accelerator)
        numbers |= time_collectives(accelerator, limits.all_reduce_mib)
        _tell(job, 2, f"{rank.world} workers have sent each other numbers")
    problem = make_problem(limits.matmul_size, job.config.seed)
    accelerator.barrier()  # all at once, as in training: neighbours share cores and heat
    precisions: tuple[Precision, ...] = ("fp32", "bf16") if accelerator.fast_bf16 else ("fp32",)
    for precision in precisions:
        try:
            numbers[f"{precision}_seconds"] = time_product(accelerator, problem, precision)
        except HostError as error:
            numbers[f"{precision}_seconds"] = math.nan
            checks.append(_wrong_product(precision, error))
    return Part(host=this_host(), numbers=numbers | _free_gib(accelerator, job.store), checks=tuple(checks))


def _wrong_product(precision: Precision, error: HostError) -> Check:
    return Check(
        name=f"matmul {precision}",
        passed=False,
        severity="critical",
        observed=None,
        sentence=str(error),
        host=this_host(),
        action="exclude host",
    )


def _judge(job: Job, before: Sequence[Check], parts: Sequence[Part], precision: Precision) -> list[Check]:
    """All checks, from the numbers of all workers; what passed on every one of them is told once."""
    limits, numbers, names = job.config.health, [part.numbers for part in parts], [part.host for part in parts]
    failed = [check for part in parts for check in part.checks if not check.passed]
    checks = [*before, *(check for check in parts[0].checks if check.name not in {each.name for each in failed})]
    checks += failed
    for name in ("fp32_seconds", "bf16_seconds"):
        if name in numbers[0]:
            checks += judge_product(name, [one[name] for one in numbers], limits)
    if len(parts) > 1:
        seconds = _product_seconds(numbers, precision)
        if not any(map(math.isnan, seconds)):
            checks.append(judge_speed(seconds, names, limits))
        if (machine := machine_of(limits)) is not None:
            checks += judge_rates(_rates(numbers, limits), len(parts), machine)
    checks += judge_space(numbers, names, limits, job.store.uri)
    conclude(job, checks, names)
    return checks


def _product_seconds(numbers: Sequence[dict[str, float]], precision: Precision) -> list[float]:
    """Of each worker, in the precision of training where that is measured."""
    key = f"{precision}_seconds" if f"{precision}_seconds" in numbers[0] else "fp32_seconds"
    return [one[key] for one in numbers]


def _rates(numbers: Sequence[dict[str, float]], limits: HealthConfig) -> dict[str, float]:
    """Of the slowest worker; empty for one that is alone."""
    if len(numbers) == 1:
        return {}
    slowest = {name: max(one[name] for one in numbers) for name in numbers[0]}
    return rates(slowest, limits.all_reduce_mib, len(numbers))


def _least_disk(whole: Whole) -> float:
    rooms = (one[kind] for one in whole.numbers for kind in ("disk", "workspace"))
    return round(min(room for room in rooms if room >= 0), 3)


def _free_gib(accelerator: Accelerator, store: Store) -> dict[str, float]:
    workspace = store.root if isinstance(store, DirectoryStore) else None
    return {
        "memory": accelerator.free_memory_bytes() / GIB,
        "disk": shutil.disk_usage(Path(tempfile.gettempdir())).free / GIB,
        "workspace": -1.0 if workspace is None else shutil.disk_usage(workspace).free / GIB,
    }


def _tell(job: Job, done: int, note: str) -> None:
    if job.rank.is_main:
        report("health", done, 3, note)

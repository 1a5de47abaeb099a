"""health: do these workers compute right, fast enough, with memory, disk and store, and do they hear each other?

Runs on the very processes that will train. What each rank measures is gathered, so all ranks judge the same numbers.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from configs.schema import HealthConfig
from infra.store import Conflict, DirectoryStore, Store
from tasks.contracts import Check, HealthOutcome
from tasks.errors import HostError, StoreError
from tasks.progress import report
from tasks.worker.accelerators import Accelerator, open_accelerator
from tasks.worker.collectives import check_collectives, rates, time_collectives
from tasks.worker.job import Job
from tasks.worker.products import gflops, make_problem, time_product

GIB = 2**30
WORKSPACE_DISK = "free workspace disk"


def run(job: Job) -> HealthOutcome:
    """Check everything that the workers need before they may train.

    Raises:
        HostError: a worker multiplies or communicates wrong, or has too little memory or disk.
        StoreError: the workspace can't be written, lets a conflicting write pass, or has too little disk.
    """
    limits, rank = job.config.health, job.rank
    checks: list[Check] = []
    collective_seconds: dict[str, float] = {}
    config = job.config
    with open_accelerator(config.accelerator, rank, config, config.train.precision) as accelerator:
        checks.append(probe_store(job.store, f"{job.spec.attempt_prefix}/probe-rank{rank.index}"))
        _tell(job, 1, "the workspace takes writes and refuses conflicting ones")
        if rank.world > 1:
            checks += check_collectives(accelerator)
            collective_seconds = time_collectives(accelerator, limits.all_reduce_mib)
            _tell(job, 2, f"{rank.world} workers hear each other")
        product_seconds = _time_products(accelerator, limits, job.config.seed)
        ranks = _gather(accelerator, product_seconds | _free_gib(accelerator, job.store) | collective_seconds)
        precision = accelerator.choose_precision(job.config.train.precision)
    key = f"{precision}_seconds" if f"{precision}_seconds" in product_seconds else "fp32_seconds"
    seconds = [one[key] for one in ranks]
    checks += [_product_check(name, [one[name] for one in ranks], limits) for name in product_seconds]
    if rank.world > 1:
        checks.append(judge_speed(seconds, limits))
    checks += judge_space(ranks, limits, job.store.uri)
    refuse(checks)
    speeds = tuple(gflops(limits.matmul_size, each) for each in seconds)
    _tell(job, 3, f"{min(speeds):g} GFLOP/s on the slowest worker")
    slowest = {name: max(one[name] for one in ranks) for name in collective_seconds}
    return HealthOutcome(
        device=accelerator.name,
        matmul_gflops=speeds,
        slowest_to_median=round(slowest_to_median(seconds), 3),
        free_memory_gib=tuple(round(one["memory"], 3) for one in ranks),
        free_disk_gib=round(min(value for one in ranks for value in (one["disk"], one["workspace"]) if value >= 0), 3),
        collectives=rates(slowest, limits.all_reduce_mib, rank.world) if slowest else {},
        checks=tuple(checks),
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


def slowest_to_median(seconds: Sequence[float]) -> float:
    """Of an even number of workers the faster one in the middle counts, so that of two the slower one can stand out."""
    return max(seconds) / statistics.median_low(seconds)


def judge_speed(seconds: Sequence[float], limits: HealthConfig) -> Check:
    """A straggler makes all others wait at every step, but training goes right: a warning."""
    ratio, slowest = slowest_to_median(seconds), max(range(len(seconds)), key=seconds.__getitem__)
    speed, usual = (gflops(limits.matmul_size, each) for each in (seconds[slowest], statistics.median_low(seconds)))
    passed = ratio <= limits.max_slowest_to_median
    sentence = (
        f"worker {slowest} is the slowest of {len(seconds)}, at {speed:g} GFLOP/s {ratio:.2f} times slower than the "
        f"median's {usual:g}; at most {limits.max_slowest_to_median:g} is fine"
    )
    if not passed:
        sentence += ". All others wait for it at every step: look for other load on its machine, or replace it"
    return Check(name="straggler", passed=passed, severity="warning", observed=round(ratio, 3), sentence=sentence)


def judge_space(ranks: Sequence[dict[str, float]], limits: HealthConfig, workspace: str) -> list[Check]:
    """The room of the worker that has the least: `memory`, `disk` and `workspace` in GiB; negative is not measured."""
    scratch = tempfile.gettempdir()
    kinds = (
        ("memory", "free memory", "of memory free", limits.min_memory_gib, "health.min_memory_gib",
         "Stop what else runs there, use fewer train.workers, or take a larger machine"),
        ("disk", "free disk", f"free on the disk of {scratch}", limits.min_disk_gib, "health.min_disk_gib",
         "Make room there, or set TMPDIR to a folder on another disk"),
        ("workspace", WORKSPACE_DISK, f"free on the disk of {workspace}", limits.min_disk_gib, "health.min_disk_gib",
         "Make room there, or move the workspace"),
    )  # fmt: skip
    checks = []
    for key, name, where, least, setting, advice in kinds:
        worst = min(range(len(ranks)), key=lambda rank: ranks[rank][key])
        free = ranks[worst][key]
        if free < 0:
            continue
        passed = free >= least
        sentence = f"worker {worst} has {free:.2f} GiB {where}, the least of {len(ranks)}; {setting} is {least:g}"
        sentence += "" if passed else f". {advice}"
        checks.append(Check(name=name, passed=passed, severity="critical", observed=round(free, 3), sentence=sentence))
    return checks


def refuse(checks: Sequence[Check]) -> None:
    """Raise for the critical checks that failed.

    Raises:
        StoreError: only the workspace's disk is short.
        HostError: anything else; another machine, or this one later, may do.
    """
    failed = [check for check in checks if not check.passed and check.severity == "critical"]
    if failed:
        kind = StoreError if all(check.name == WORKSPACE_DISK for check in failed) else HostError
        raise kind("; ".join(check.sentence for check in failed))


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


def _time_products(accelerator: Accelerator, limits: HealthConfig, seed: int) -> dict[str, float]:
    problem = make_problem(limits.matmul_size, seed)
    accelerator.barrier()  # all at once, as in training: neighbours share cores and heat
    seconds = {"fp32_seconds": time_product(accelerator, problem, "fp32")}
    if accelerator.fast_bf16:
        seconds["bf16_seconds"] = time_product(accelerator, problem, "bf16")
    return seconds


def _product_check(name: str, seconds: Sequence[float], limits: HealthConfig) -> Check:
    precision = name.removesuffix("_seconds")
    speeds = ", ".join(f"{gflops(limits.matmul_size, each):g}" for each in seconds)
    shape = f"{limits.matmul_size} x {limits.matmul_size}"
    sentence = f"a {shape} product in {precision} is right on every worker, at {speeds} GFLOP/s"
    return Check(name=f"matmul {precision}", passed=True, severity="critical", observed=None, sentence=sentence)


def _free_gib(accelerator: Accelerator, store: Store) -> dict[str, float]:
    workspace = store.root if isinstance(store, DirectoryStore) else None
    return {
        "memory": accelerator.free_memory_bytes() / GIB,
        "disk": shutil.disk_usage(Path(tempfile.gettempdir())).free / GIB,
        "workspace": -1.0 if workspace is None else shutil.disk_usage(workspace).free / GIB,
    }


def _gather(accelerator: Accelerator, mine: dict[str, float]) -> list[dict[str, float]]:
    """Every rank's numbers, in rank order."""
    rows = accelerator.gather(torch.tensor([list(mine.values())]))
    return [dict(zip(mine, row, strict=True)) for row in rows.tolist()]


def _tell(job: Job, done: int, note: str) -> None:
    if job.rank.is_main:
        report("health", done, 3, note)

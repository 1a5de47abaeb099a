"""health: checks the workers' arithmetic, speed, memory, disk, store and communication.

It runs on the same kind of processes as training. The numbers of all ranks are collected and judged once.
"""

import contextlib
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from configs.schema.stages import HealthConfig
from infra.store.base import Store
from infra.store.factory import find_broken_guarantee, scheme_of
from tasks.contracts.jobs import report
from tasks.contracts.outcomes import Check, HealthOutcome
from tasks.foundation.errors import FailureClass, HostError, StoreError, classify
from tasks.runs.host_records import this_host
from tasks.worker.checks.known_answers import check_collectives, make_problem, rates, time_collectives, time_product
from tasks.worker.checks.nodes import (
    AllFindings,
    WorkerFindings,
    check_nodes,
    exchange,
    folder,
    run_once_per_machine,
    write_findings,
)
from tasks.worker.checks.verdicts import (
    conclude,
    gflops,
    judge_product,
    judge_rates,
    judge_space,
    judge_speed,
    machine_of,
    refuse,
    slowest_to_median,
)
from tasks.worker.devices.accelerators import Accelerator, open_accelerator
from tasks.worker.devices.base import Precision
from tasks.worker.process.job import Job

GIB = 2**30


def run(job: Job) -> HealthOutcome:
    """Check the workers and their machines before training.

    Raises:
        HostError: a worker multiplies or communicates wrong; or a machine is broken, too slow, in use, or too small.
        StoreError: the workspace can't be written, or accepts a conflicting write.
        DiskError: the disk of the workspace has too little space.
        ConfigError: the machines are not of the configured kind, or their tools are missing.
    """
    limits, rank, config = job.config.health, job.rank, job.config
    before = [probe_store(job.store, f"{job.spec.attempt_prefix}/probe-rank{rank.index}")]
    _report(job, 1, "the workspace takes writes and refuses conflicting ones")
    before += check_nodes(job)
    refuse(before)
    with open_accelerator(config.accelerator, rank, config, config.train.precision) as accelerator:
        with _known_graphs(job, accelerator):
            mine = _measure(job, accelerator)
        precision = accelerator.choose_precision(config.train.precision)
        together = f"{folder(job)}/workers"
        if rank.local > 0:
            write_findings(job.store, together, rank.index, mine)
        whole = run_once_per_machine(
            job, "workers",
            lambda: exchange(
                job.store, together, rank.index, rank.world, mine,
                lambda findings: _judge(job, before, findings, precision),
            ),
        )  # fmt: skip
        refuse(whole.checks)
        accelerator.barrier()  # all have read the findings
    if rank.is_main:
        job.store.delete(folder(job))
    seconds = _product_seconds(whole.numbers, precision)
    speeds = tuple(gflops(limits.matmul_size, each) for each in seconds)
    _report(job, 3, f"{min(speeds):g} GFLOP/s on the slowest worker")
    return HealthOutcome(
        device=accelerator.name,
        matmul_gflops=speeds,
        slowest_to_median=round(slowest_to_median(seconds), 3),
        free_memory_gib=tuple(round(numbers["memory"], 3) for numbers in whole.numbers),
        free_disk_gib=_least_disk(whole),
        collectives=_rates(whole.numbers, limits),
        checks=whole.checks,
    )


def probe_store(store: Store, prefix: str) -> Check:
    """Check that the store reads back a write and refuses conflicting writes; delete everything under `prefix`.

    Raises:
        StoreError: an operation failed, or the store breaks a guarantee; the message names it.
        OSError: the disk is full.
    """
    key = f"{prefix}/probe"
    try:
        try:
            broken = find_broken_guarantee(store, key)
        finally:
            store.delete(prefix)
    except OSError as error:
        if classify(error) is FailureClass.DISK:
            raise
        raise StoreError(f"{store.uri}/{key}: {error}. Check that the workspace is mounted and is writable") from error
    if broken:
        raise StoreError(
            f"{store.uri}/{key}: {broken}. Two runs could overwrite each other's release here; "
            "use a file system or bucket with conditional writes"
        )
    return Check.critical("store", True, f"{store.uri} takes writes, reads them back, and refuses conflicting writes")


def _known_graphs(job: Job, accelerator: Accelerator) -> contextlib.AbstractContextManager[None]:
    """Return a block whose graphs are compiled only in the first run, if the runtime loads compiled graphs."""
    if not accelerator.reads_graphs:
        return contextlib.nullcontext()
    from tasks.worker.training.compile_cache import provide_check_graphs  # seconds to import, for devices that compile

    return provide_check_graphs(job, accelerator)


def _measure(job: Job, accelerator: Accelerator) -> WorkerFindings:
    """Return this worker's findings; errors are findings too, as others would wait for this worker in a collective."""
    limits, rank = job.config.health, job.rank
    checks: list[Check] = []
    numbers: dict[str, float] = {}
    if rank.world > 1:
        checks += check_collectives(accelerator)
        numbers |= time_collectives(accelerator, limits.all_reduce_mib)
        _report(job, 2, f"{rank.world} workers have sent each other numbers")
    problem = make_problem(limits.matmul_size, job.config.seed)
    accelerator.barrier()  # start together, as in training: workers share cores and heat
    precisions: tuple[Precision, ...] = ("fp32", "bf16") if accelerator.fast_bf16 else ("fp32",)
    for precision in precisions:
        try:
            numbers[f"{precision}_seconds"] = time_product(accelerator, problem, precision)
        except HostError as error:
            numbers[f"{precision}_seconds"] = math.nan
            host = this_host()
            checks.append(Check.critical(f"matmul {precision}", False, str(error), "exclude host", host=host))
    return WorkerFindings(host=this_host(), numbers=numbers | _free_gib(accelerator, job.store), checks=tuple(checks))


def _judge(job: Job, before: Sequence[Check], findings: Sequence[WorkerFindings], precision: Precision) -> list[Check]:
    """Return the checks of all workers; a check that every worker passed appears once."""
    limits, numbers, names = job.config.health, [each.numbers for each in findings], [each.host for each in findings]
    failed = [check for each in findings for check in each.checks if not check.passed]
    checks = [*before, *(check for check in findings[0].checks if check.name not in {each.name for each in failed})]
    checks += failed
    for name in ("fp32_seconds", "bf16_seconds"):
        if name in numbers[0]:
            checks += judge_product(name, [each[name] for each in numbers], limits)
    if len(findings) > 1:
        seconds = _product_seconds(numbers, precision)
        if not any(map(math.isnan, seconds)):
            checks.append(judge_speed(seconds, names, limits))
        if (machine := machine_of(limits)) is not None:
            assert limits.machine is not None
            checks += judge_rates(_rates(numbers, limits), len(findings), limits.machine, machine)
    checks += judge_space(numbers, names, limits, job.store.uri)
    conclude(job, checks, names)
    return checks


def _product_seconds(numbers: Sequence[dict[str, float]], precision: Precision) -> list[float]:
    """Return the seconds of each worker, in training's precision if measured, else in fp32."""
    key = f"{precision.removesuffix('-weights')}_seconds"  # bf16-weights multiplies in bf16
    key = key if key in numbers[0] else "fp32_seconds"
    return [each[key] for each in numbers]


def _rates(numbers: Sequence[dict[str, float]], limits: HealthConfig) -> dict[str, float]:
    """Return the rates of the slowest worker; empty for a single worker."""
    if len(numbers) == 1:
        return {}
    slowest = {name: max(each[name] for each in numbers) for name in numbers[0]}
    return rates(slowest, limits.all_reduce_mib, len(numbers))


def _least_disk(whole: AllFindings) -> float:
    spaces = (numbers[kind] for numbers in whole.numbers for kind in ("disk", "workspace"))
    return round(min(space for space in spaces if space >= 0), 3)


def _free_gib(accelerator: Accelerator, store: Store) -> dict[str, float]:
    workspace = Path(store.uri) if scheme_of(store.uri) == "file" else None
    return {
        "memory": accelerator.free_memory_bytes() / GIB,
        "disk": shutil.disk_usage(Path(tempfile.gettempdir())).free / GIB,
        "workspace": -1.0 if workspace is None else shutil.disk_usage(workspace).free / GIB,
    }


def _report(job: Job, done: int, note: str) -> None:
    if job.rank.is_main:
        report("health", done, 3, note)

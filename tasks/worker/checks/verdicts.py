"""Judges measured numbers and findings: makes checks, updates host records, raises errors.

Nothing is measured here; one worker judges for all.
"""

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence

from configs.schema.compute import MachineConfig
from configs.schema.gates import Severity
from configs.schema.stages import Bounds, HealthConfig
from tasks.contracts.outcomes import Action, Check
from tasks.contracts.workspace import FINDINGS
from tasks.foundation.errors import ConfigError, DiskError, HostError, StoreError
from tasks.runs import host_records
from tasks.runs.host_records import Findings, with_verdict
from tasks.worker.process.job import Job


def check_share(
    name: str, share: float, bounds: Bounds, setting: str, sentence: str, advice: str = "", more: str = ""
) -> Check:
    """Return the check of a share.

    Args:
        setting: configuration key of the bounds, below `validate`.
        sentence: describes the share with its numbers, without a full stop.
        advice: for a failed check: likely cause and next step.
        more: word after the bound if the share is a rise, as in `at most 10 % more`.
    """
    stops = bounds.stop is not None and share > bounds.stop
    passed = not stops and (bounds.warn is None or share <= bounds.warn)
    severity: Severity = "critical" if stops or (passed and bounds.stop is not None) else "warning"
    allowed = bounds.stop if stops else bounds.warn
    expected = f"; at most {allowed:.2%} {more + ' ' * bool(more)}is expected" if allowed is not None else ""
    text = f"{sentence}{expected}."
    if not passed and advice:
        text += f" {advice}"
    if stops:
        text += f" If that is meant: --set validate.{setting}.stop=null for this run."
    return Check(name=name, passed=passed, severity=severity, observed=round(share, 6), sentence=text)


def not_judged(name: str, bounds: Bounds, why: str) -> Check:
    """Return a passed check for a share of too few rows or items."""
    severity: Severity = "critical" if bounds.stop is not None else "warning"
    return Check(name=name, passed=True, severity=severity, observed=None, sentence=f"Not judged: {why}.")


WORKSPACE_DISK = "free workspace disk"


def machine_of(limits: HealthConfig) -> MachineConfig | None:
    """Return the required devices and speeds of the nodes; None if unknown."""
    return limits.machines[limits.machine] if limits.machine is not None else None


def slowest_to_median(seconds: Sequence[float]) -> float:
    """Return slowest over median, the lower of two middle values: one slow worker of two still shows."""
    return max(seconds) / statistics.median_low(seconds)


def gflops(size: int, seconds: float) -> float:
    """Return GFLOP/s of a product of (size, size) matrices."""
    return round(2 * size**3 / seconds / 1e9, 3)


def judge_speed(seconds: Sequence[float], names: Sequence[str], limits: HealthConfig) -> Check:
    """Warn about a straggler, for which all others wait at every step. `names` are the hosts."""
    ratio, slowest = slowest_to_median(seconds), max(range(len(seconds)), key=seconds.__getitem__)
    speed, usual = (gflops(limits.matmul_size, each) for each in (seconds[slowest], statistics.median_low(seconds)))
    passed = ratio <= limits.max_slowest_to_median
    sentence = (
        f"worker {slowest} is the slowest of {len(seconds)}, at {speed:g} GFLOP/s {ratio:.2f} times slower than the "
        f"median's {usual:g}; at most {limits.max_slowest_to_median:g} is allowed"
    )
    if not passed:
        sentence += ". All others wait for it at every step: look for other load on its machine, or replace it"
    return Check(
        name="straggler",
        passed=passed,
        severity="warning",
        observed=round(ratio, 3),
        sentence=sentence,
        host=names[slowest],
    )


def judge_product(name: str, seconds: Sequence[float], limits: HealthConfig) -> list[Check]:
    """Return one check for all workers; none if a worker multiplied wrong (NaN seconds): that has its own check."""
    if any(map(math.isnan, seconds)):
        return []
    precision = name.removesuffix("_seconds")
    speeds = ", ".join(f"{gflops(limits.matmul_size, each):g}" for each in seconds)
    shape = f"{limits.matmul_size} x {limits.matmul_size}"
    sentence = f"a {shape} product in {precision} is correct on every worker, at {speeds} GFLOP/s"
    return [Check.critical(f"matmul {precision}", True, sentence)]


def judge_rates(rates: dict[str, float], world: int, name: str, machine: MachineConfig) -> list[Check]:
    """Compare the workers' own all-reduce with health.machines' bounds for this kind of machine; both only warn.

    A collective does not show the slow worker, so the findings are about all hosts.
    """
    bus, latency = rates["all_reduce_bus_gb_s"], rates["all_reduce_latency_us"]
    least, most = machine.min_bus_gb_s, machine.max_latency_us
    found = (
        ("bandwidth", bus >= least, bus, f"is at {bus:g} GB/s on the bus; at least {least:g} is usual"),
        ("latency", latency <= most, latency, f"of 4 bytes takes {latency:g} us; at most {most:g} is usual"),
    )
    checks = []
    for kind, passed, observed, told in found:
        sentence = f"the all-reduce over {world} workers {told}, by health.machines.{name}"
        if not passed:
            sentence += (
                ". Do all nodes use EFA (FI_PROVIDER=efa), in one placement group? If so, one of them is degraded"
            )
        checks.append(
            Check(name=f"all-reduce {kind}", passed=passed, severity="warning", observed=observed, sentence=sentence)
        )
    return checks


def judge_space(
    ranks: Sequence[dict[str, float]], names: Sequence[str], limits: HealthConfig, workspace: str
) -> list[Check]:
    """Judge the least free `memory`, `disk` and `workspace` of all workers, in GiB; negative: not measured."""
    scratch = tempfile.gettempdir()
    kinds = (
        ("memory", "free memory", "of memory free", limits.min_memory_gib, "health.min_memory_gib",
         "Stop other programs there, use fewer train.workers, or take a larger machine"),
        ("disk", "free disk", f"free on the disk of {scratch}", limits.min_disk_gib, "health.min_disk_gib",
         "Free space there, or set TMPDIR to a folder on another disk"),
        ("workspace", WORKSPACE_DISK, f"free on the disk of {workspace}", limits.min_disk_gib, "health.min_disk_gib",
         "Free space there, or move the workspace"),
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
        action: Action = "proceed" if name == WORKSPACE_DISK else "retry elsewhere"
        host = "" if name == WORKSPACE_DISK else names[worst]
        checks.append(Check.critical(name, passed, sentence, action, round(free, 3), host))
    return checks


def conclude(job: Job, checks: Sequence[Check], names: Sequence[str]) -> None:
    """Write findings that reject these workers to the attempt and to their hosts' records.

    Call it once, before any worker raises: the first worker to fail may end the others.

    Args:
        names: the hosts that took part; a finding without a host concerns all of them.
    """
    failed = _failed(checks)
    if not failed:
        return
    try:
        job.store.write(FINDINGS.of(job.spec), Findings(checks=tuple(checks)).to_json())
        if host_records.handed_out():
            _remember(job, failed, names)
    except (OSError, StoreError) as error:  # must not hide the findings
        print(f"the findings could not be written: {error}", file=sys.stderr, flush=True)


def refuse(checks: Sequence[Check]) -> None:
    """Raise for failed critical checks, with all their sentences.

    Raises:
        ConfigError: a check demands a stop, as it would fail on any machine.
        DiskError: only the workspace's disk is too full.
        HostError: any other failure; another machine, or this one later, may pass.
    """
    failed = _failed(checks)
    if not failed:
        return
    kind: type[ConfigError | DiskError | HostError] = HostError
    if any(check.action == "stop" for check in failed):
        kind = ConfigError
    elif all(check.name == WORKSPACE_DISK for check in failed):
        kind = DiskError
    raise kind("; ".join(with_verdict(check) for check in failed))


def _failed(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if not check.passed and check.severity == "critical"]


def _remember(job: Job, failed: Sequence[Check], names: Sequence[str]) -> None:
    """Record one strike or exclusion for each host, for any number of findings about it."""
    limits, run_key, now = job.config.health, job.spec.run_key, time.time()
    for host in dict.fromkeys(names):
        about = [check for check in failed if check.host in ("", host)]
        for action, remember in (("exclude host", host_records.exclude), ("retry elsewhere", host_records.strike)):
            reasons = [check.sentence for check in about if check.action == action]
            if reasons:
                record = remember(job.store, host, "; ".join(reasons), run_key, limits, now)
                what = "is excluded" if record.exclusion else f"has {len(record.strikes)} of {limits.strikes} strikes"
                print(f"host {host} {what}", flush=True)
                break  # an excluded host needs no strike

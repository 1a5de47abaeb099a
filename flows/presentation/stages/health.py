"""Health: the checks of each machine, and the speed of the workers and their network."""

from flows.presentation.model import Section, table
from flows.presentation.stages import checks
from flows.presentation.stages.facts import StageFacts
from flows.presentation.wording import plural
from tasks.contracts.outcomes import HealthOutcome

MANY_WORKERS = 16
_UNITS = (("_gb_s", "GB/s"), ("_us", "µs"))


def section(facts: StageFacts) -> Section:
    """Return the checks, the speed of each worker, and the measurements between workers."""
    value: HealthOutcome = facts.outcome
    warnings = sum(not check.passed for check in value.checks)
    workers = len(value.matmul_gflops)
    lines = [f"{plural(workers, 'worker')} on {value.device}, at least {value.free_disk_gib:,.1f} GiB of disk free."]
    if workers > 1:
        slowest = f"{min(value.matmul_gflops):,.1f} GFLOP/s"
        lines.append(f"The slowest ({slowest}) takes {value.slowest_to_median:g} times as long as the median.")
    by_rank = [
        (str(rank), f"{speed:,.1f}", f"{memory:,.1f}")
        for rank, (speed, memory) in enumerate(zip(value.matmul_gflops, value.free_memory_gib, strict=True))
    ]
    columns = (">rank", ">GFLOP/s", ">free memory, GiB")
    tables = [table("Workers", columns, by_rank, folded=workers > MANY_WORKERS)]
    if value.collectives:
        measured = [_measured(*each) for each in value.collectives.items()]
        tables.append(table("Between the workers", ("what", ">measured", "unit"), measured))
    title = plural(warnings, "warning") if warnings else "the machines are healthy"
    return Section(title, tuple(lines), parts=checks.section(value.checks), tables=tuple(tables))


def _measured(name: str, number: float) -> tuple[str, str, str]:
    """`all_reduce_bus_gb_s` as a name, a number and its unit."""
    for ending, unit in _UNITS:
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", " "), f"{number:,.2f}", unit
    return name, f"{number:,.2f}", ""

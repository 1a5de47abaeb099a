"""Health: the checks of each machine, and the speed of the workers and their network.

The table of checks is validate's too.
"""

from collections.abc import Sequence

from flows.presentation.model import Section, passed, table
from flows.presentation.stages.facts import StageFacts
from tasks.contracts.outcomes import Check, HealthOutcome
from tasks.foundation.nouns import plural
from tasks.runs.host_records import with_verdict


def checks_section(checks: Sequence[Check], title: str = "Checks") -> tuple[Section, ...]:
    """Return the checks, failed ones first, with a column of hosts if a check names one; empty without checks."""
    if not checks:
        return ()
    hosts = any(check.host for check in checks)
    failed_first = sorted(checks, key=lambda check: (check.passed, check.severity != "critical"))
    rows = [
        (c.name, *((c.host or "all",) if hosts else ()), passed(c.passed, c.severity), with_verdict(c))
        for c in failed_first
    ]
    columns = ("check", *(("host",) if hosts else ()), "result", "~what was found")
    failed = sum(not check.passed for check in checks)
    tables = (
        *((table("", columns, rows[:failed]),) if failed else ()),
        *(
            (table(f"{plural(len(rows) - failed, 'check')} passed", columns, rows[failed:], folded=True),)
            * (failed < len(rows))
        ),
    )
    return (Section(title, tables=tables),)


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
    return Section(title, tuple(lines), parts=checks_section(value.checks), tables=tuple(tables))


def _measured(name: str, number: float) -> tuple[str, str, str]:
    """`all_reduce_bus_gb_s` as a name, a number and its unit."""
    for ending, unit in _UNITS:
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", " "), f"{number:,.2f}", unit
    return name, f"{number:,.2f}", ""

"""The page of health: what was checked on which machine, and how fast workers and their network are."""

from __future__ import annotations

from flows.pages.account import checks_table, foot, head
from flows.pages.markdown import counted, table
from infra.store import Store
from tasks.contracts import HealthOutcome, RunPlan, Stage


def page(store: Store, plan: RunPlan, value: HealthOutcome) -> str:
    """Markdown. Raises StoreError if the ledger is not readable."""
    warnings = sum(not check.passed for check in value.checks)
    several = f" The slowest takes {value.slowest_to_median:g} times the median."
    sentence = (
        f"{counted(len(value.matmul_gflops), 'worker')} on {value.device}, with {value.free_disk_gib:,.1f} GiB of disk "
        f"free at least.{several if len(value.matmul_gflops) > 1 else ''}"
    )
    title = "Healthy" + (f", with {counted(warnings, 'warning')}" if warnings else "")
    lines = head(plan, title, sentence)
    if value.checks:
        lines += ["## Checks", "", *checks_table(value.checks)]
    lines += ["## Workers", ""]
    lines += table(
        (">rank", ">GFLOP/s", ">free memory, GiB"),
        [
            (str(rank), f"{speed:,.1f}", f"{memory:,.1f}")
            for rank, (speed, memory) in enumerate(zip(value.matmul_gflops, value.free_memory_gib, strict=True))
        ],
    )
    if value.collectives:
        lines += ["## Between the workers", ""]
        lines += table(("", ">measured", ""), [_measured(*found) for found in value.collectives.items()])
    return "\n".join([*lines, *foot(store, plan, Stage.health, {})])


def _measured(name: str, number: float) -> tuple[str, str, str]:
    """`all_reduce_bus_gb_s` as a name, a number and its unit."""
    for ending, unit in (("_gb_s", "GB/s"), ("_us", "µs")):
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", " "), f"{number:,.2f}", unit
    return name, f"{number:,.2f}", ""

"""`millrace parity`: look before anything starts, then run the flow; what it tells scripts and people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field
from rich.console import Console
from rich.table import Table

from configs.load import load_config
from flows.cli.running import run_flow
from infra.store import Store
from tasks.parity import ParityReport, percent, worst_by_metric
from tasks.records import Record
from tasks.sides import plan_sides


class ParityOutput(Record):
    """`millrace parity`. Sides that do not agree are a result like any other."""

    state: Literal["Agreed", "Rejected"]
    sentence: str
    ui_url: str
    run_url: str = Field(description="the flow run's page, with its log and artifacts")
    plot: str = Field(description="where the plot of the curves lies, an SVG")
    report: ParityReport


def parity(
    store: Store, span: str, left: str, right: str, place: Path | None, overrides: Sequence[str], verbose: bool
) -> ParityOutput:
    """Train on both accelerators, as far as that was not done before, and compare.

    Raises:
        StageError: of the class that stopped the comparison.
    """
    plan_sides(store, load_config(place, overrides), span, left, right)  # what can't be planned needs no server
    done = run_flow("parity", verbose, store.uri, span, left, right, str(place) if place else None, tuple(overrides))
    report = done.value
    assert isinstance(report, ParityReport)
    return ParityOutput(
        state="Agreed" if report.passed else "Rejected",
        sentence=report.sentence,
        ui_url=done.ui_url,
        run_url=done.run_url,
        plot=f"{store.uri}/{report.plot}",
        report=report,
    )


def show(output: ParityOutput) -> None:
    """As people read it: where each metric differs most, and the verdict."""
    report = output.report
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("metric")
    for name in ("step", report.left.accelerator, report.right.accelerator, "difference"):
        table.add_column(name, justify="right")
    for point in (*worst_by_metric(report.points), *worst_by_metric(report.losses)):
        values = (f"{value:.8g}" for value in (point.left, point.right))
        table.add_row(point.metric, str(point.step), *values, percent(point.relative_difference))
    start = f"{report.parent.prefix} (step {report.parent.step})" if report.parent else "nothing"
    console = Console(width=None if sys.stdout.isatty() else 160)
    lines = (
        f"parity {report.key} over {report.span.name}, lineage {report.lineage}, from {start}: {output.run_url}",
        "where each metric differs most, over all evaluations:",
    )
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(table)
    for line in (f"plot: {output.plot}", f"{output.state}: {output.sentence}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)

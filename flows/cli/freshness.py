"""`millrace freshness`: how old the released vectors' data is, how far each span has come, and what is wrong."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

import tasks.freshness
from configs.load import load_config
from infra.store import Store
from tasks.deadlines import Clock
from tasks.durations import old
from tasks.freshness import FreshnessReport
from tasks.ledger import now

ROWS = 31  # of the newest spans
_TIMES = ("arrived_at", "validated_at", "trained_at", "evaluated_at", "embedded_at", "released_at")


def freshness(store: Store, place: Path | None, overrides: Sequence[str]) -> FreshnessReport:
    """As `tasks.freshness.freshness`, at this moment."""
    return tasks.freshness.freshness(store, load_config(place, overrides), dt.datetime.fromisoformat(now()))


def show(report: FreshnessReport) -> None:
    """As people read it; times are in UTC."""
    console = Console(width=None if sys.stdout.isatty() else 160)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    say(f"lineage {report.lineage}{f', on branch {report.continues}' * (report.continues != report.lineage)}")
    say(_age(report))
    if report.spans:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for heading in ("span", "", "arrived", "validated", "trained", "evaluated", "embedded", "released"):
            table.add_column(heading, no_wrap=True)
        for row in report.spans[-ROWS:]:
            table.add_row(row.span, row.state, *(_minute(getattr(row, name)) for name in _TIMES))
        console.print(table)
    if older := report.older + max(0, len(report.spans) - ROWS):
        say(f"and {older} older")
    for clock in report.clocks:
        say(_clock(clock))
    for problem in report.problems:
        say(f"{'!' if problem.urgent else '-'} {problem.sentence}")
        say(f"  {problem.way_out}")
    if not report.problems:
        say("nothing is amiss")


def _age(report: FreshnessReport) -> str:
    if report.newest is None or report.age_hours is None:
        return "nothing is released"
    state = "stale since" if report.stale else "fresh until"
    return (
        f"release {report.release} holds data up to {report.newest}, {old(report.age_hours)} old of "
        f"{old(report.target_hours)} promised; {state} {_minute(report.stale_at)} UTC"
    )


def _clock(clock: Clock) -> str:
    ends = f"ended {_minute(clock.ended_at)}" if clock.ended_at else f"should end {_minute(clock.expected_end) or '?'}"
    standing = f"{clock.standing}, lost" if clock.lost else f"{clock.standing}, {ends}"
    return f"run over {clock.span}, attempt {clock.attempt}: {standing}, deadline {_minute(clock.deadline)}"


def _minute(moment: str | None) -> str:
    return moment[5:16].replace("T", " ") if moment else ""

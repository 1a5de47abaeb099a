"""The watch in Prefect's UI: a page of the problems, and a table of the newest spans."""

from collections.abc import Sequence

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.presentation.markdown import page
from flows.presentation.model import Cell, Command, Section, table
from flows.presentation.wording import moment, versions
from tasks.foundation.clock import old
from tasks.monitoring.freshness import FreshnessReport
from tasks.monitoring.problems import Problem
from tasks.monitoring.span_progress import SpanRow

ROWS = 31  # each watch leaves such a table on the server


def publish(report: FreshnessReport, started: str) -> None:
    """Make the page and the table of the current flow run. `started` is a sentence about a started run, or empty."""
    about = f"lineage {report.lineage}, {moment(report.at)} UTC"
    create_markdown_artifact(
        key=f"watch-{report.lineage}", markdown=page(section(report, started), ""), description=about
    )
    create_table_artifact(key=f"freshness-{report.lineage}", table=rows(report), description=about)


def section(report: FreshnessReport, started: str) -> Section:
    """Return the section with the vectors' age, the problems with their remedies, and the running or late runs."""
    urgent = [problem for problem in report.problems if problem.urgent]
    known = [problem for problem in report.problems if not problem.urgent]
    clocks = [
        (
            Cell(f"{clock.span} attempt {clock.attempt}", link=clock.page),
            "lost" if clock.lost else clock.standing,
            moment(clock.began_at),
            moment(clock.ended_at or clock.expected_end),
            moment(clock.deadline),
            clock.failure or "",
        )
        for clock in report.clocks
    ]
    columns = ("run", "state", "began", "ends", "deadline", "most time lost to")
    return Section(
        "Attention" if urgent else "Nothing is wrong",
        (_age(report), *_held(report), *_catalogue(report), *((started,) if started else ())),
        tables=(table("Runs", columns, clocks),) if clocks else (),
        parts=(*_problems("What is wrong", urgent), *_problems("Good to know", known)),
        commands=(Command("Times are in UTC. The same in a terminal:", ("millrace freshness",)),),
    )


def rows(report: FreshnessReport) -> list[dict[str, str]]:
    """Return the newest spans, newest first, in few short columns: the UI truncates wider tables."""
    return [_row(row) for row in reversed(report.spans[-ROWS:])]


def _row(row: SpanRow) -> dict[str, str]:
    return {
        "span": row.span,
        "state": row.state,
        "version": versions(row.version, row.trained_version),
        "arrived": _short(row.arrived_at),
        "trained": _short(row.trained_at),
        "embedded": _short(row.embedded_at),
        "released": _short(row.released_at),
    }


def _age(report: FreshnessReport) -> str:
    if report.newest is None or report.age_hours is None:
        return "Nothing is released."
    state = "stale" if report.stale else f"fresh until {moment(report.stale_at)}"
    return (
        f"The released vectors (release {report.release}) hold data up to {report.newest}: "
        f"{old(report.age_hours)} old, of {old(report.target_hours)} promised; {state}."
    )


def _held(report: FreshnessReport) -> tuple[str, ...]:
    return (report.hold.sentence,) if report.hold is not None else ()


def _catalogue(report: FreshnessReport) -> tuple[str, ...]:
    if report.catalogue is None:
        return ()
    until = report.catalogue.complete_until
    items = f"all items that had arrived by {moment(until)}" if until else "all items that have arrived"
    return (f"It holds {items}: {report.catalogue.sentence}.",)


def _problems(title: str, problems: Sequence[Problem]) -> tuple[Section, ...]:
    if not problems:
        return ()
    return (Section(title, tuple(line for p in problems for line in (p.sentence, f"→ {p.way_out}"))),)


def _short(iso: str | None) -> str:
    """Format a time as in `11-13 06:12`; empty if the span has not reached this state."""
    return moment(iso)[5:] if iso else ""

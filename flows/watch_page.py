"""The watch as Prefect's UI shows it: a page of what is wrong, and a table of the newest spans."""

from __future__ import annotations

from collections.abc import Sequence

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.pages.markdown import bold, link, table, text
from tasks.durations import old
from tasks.freshness import FreshnessReport
from tasks.problems import Problem
from tasks.standing import SpanRow

ROWS = 31  # each watch leaves such a table on the server


def publish(report: FreshnessReport, started: str) -> None:
    """Make the page and the table, of the flow run in which this is called. `started` says what was begun."""
    about = f"lineage {report.lineage}, {_minute(report.at)} UTC"
    create_markdown_artifact(key=f"watch-{report.lineage}", markdown=markdown(report, started), description=about)
    create_table_artifact(key=f"freshness-{report.lineage}", table=rows(report), description=about)


def markdown(report: FreshnessReport, started: str) -> str:
    """How old the vectors are, what is wrong with the way out, and the runs that are under way or were late."""
    urgent = [problem for problem in report.problems if problem.urgent]
    known = [problem for problem in report.problems if not problem.urgent]
    lines = [f"# {'Attention' if urgent else 'Nothing is amiss'}", "", _age(report), ""]
    lines += [*_listed(urgent), ""]
    if started:
        lines += [text(started), ""]
    if known:
        lines += ["Good to know:", "", *_listed(known), ""]
    if report.clocks:
        cells = [
            (
                link(f"{clock.span} attempt {clock.attempt}", clock.page)
                if clock.page
                else f"{clock.span} attempt {clock.attempt}",
                "lost" if clock.lost else clock.standing,
                _minute(clock.began_at),
                _minute(clock.ended_at or clock.expected_end),
                _minute(clock.deadline),
                clock.failure or "",
            )
            for clock in report.clocks
        ]
        lines += table(("run", "", "began", "ends", "deadline", "most time lost to"), cells)
    lines.append("Times are in UTC. The same in a terminal: `millrace freshness`")
    return "\n".join(lines)


def rows(report: FreshnessReport) -> list[dict[str, str]]:
    """The newest spans, newest first; with few and short columns, as the UI cuts off what is wider than the window."""
    return [_row(row) for row in reversed(report.spans[-ROWS:])]


def _row(row: SpanRow) -> dict[str, str]:
    version = f"v{row.version}" if row.version else ""
    if row.trained_version and row.trained_version != row.version:
        version += f", v{row.trained_version} trained"
    return {
        "span": row.span,
        "state": row.state,
        "version": version,
        "arrived": _short(row.arrived_at),
        "trained": _short(row.trained_at),
        "embedded": _short(row.embedded_at),
        "released": _short(row.released_at),
    }


def _age(report: FreshnessReport) -> str:
    if report.newest is None or report.age_hours is None:
        return "Nothing is released."
    state = bold("stale") if report.stale else f"fresh until {_minute(report.stale_at)}"
    return (
        f"The released vectors (release {report.release}) hold data up to {bold(report.newest)}: "
        f"{old(report.age_hours)} old, of {old(report.target_hours)} promised; {state}."
    )


def _listed(problems: Sequence[Problem]) -> list[str]:
    return [f"- {text(problem.sentence)}  \n  {text(problem.way_out)}" for problem in problems]


def _minute(moment: str | None) -> str:
    """As in `2026-11-13 06:12`; records are in UTC."""
    return moment[:16].replace("T", " ") if moment else ""


def _short(moment: str | None) -> str:
    """As in `11-13 06:12`."""
    return _minute(moment)[5:]

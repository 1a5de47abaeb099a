"""`millrace freshness`: age of the released data and items, progress of each span, and problems."""

import datetime as dt

import tasks.monitoring.freshness
from configs.load import with_overrides
from configs.schema.config import Config
from flows.cli.terminal.command import command
from flows.cli.terminal.console import say, show_table
from flows.cli.terminal.options import RunOptions
from tasks.foundation.clock import now, old
from tasks.monitoring.catalogue_age import CatalogueAge
from tasks.monitoring.deadlines import Clock
from tasks.monitoring.freshness import FreshnessReport
from tasks.monitoring.history import last_config
from tasks.runs.experiments import read_all
from tasks.runs.run import read_runs
from tasks.runs.snapshot import Snapshot

ROWS = 31  # newest spans only
_TIMES = ("arrived_at", "validated_at", "trained_at", "evaluated_at", "embedded_at", "released_at")


def show(report: FreshnessReport) -> None:
    """Print the report; times are in UTC."""
    say(f"lineage {report.lineage}{f', on branch {report.continues}' * (report.continues != report.lineage)}")
    say(_age(report))
    if report.hold is not None:
        say(report.hold.sentence)
    if report.catalogue is not None:
        say(_catalogue(report.catalogue, report))
    if report.spans:
        columns = ("span", "state", "arrived", "validated", "trained", "evaluated", "embedded", "released")
        rows = [(row.span, row.state, *(_minute(getattr(row, name)) for name in _TIMES)) for row in report.spans]
        show_table(columns, rows[-ROWS:])
    if older := report.older + max(0, len(report.spans) - ROWS):
        say(f"and {older} older")
    for clock in report.clocks:
        say(_clock(clock))
    for problem in report.problems:
        say(f"{'!' if problem.urgent else '-'} {problem.sentence}")
        say(f"  {problem.way_out}")
    if not report.problems:
        say("nothing is wrong")


@command(show)
def freshness(options: RunOptions) -> FreshnessReport:
    """Show the age of the released data, the progress of each span, and everything missing, missed or late.

    Settings come from the last run, as in history and metrics, unless --config names a file.
    """
    return tasks.monitoring.freshness.freshness(options.store, _settings(options), dt.datetime.fromisoformat(now()))


def _settings(options: RunOptions) -> Config:
    tried = {each.run_key for each in read_all(options.store)}
    last = last_config(read_runs(Snapshot(options.store), ()), tried) if not options.named else None
    return with_overrides(last, options.overrides) if last is not None else options.config()


def _age(report: FreshnessReport) -> str:
    if report.newest is None or report.age_hours is None:
        return "nothing is released"
    state = "stale since" if report.stale else "fresh until"
    return (
        f"release {report.release} holds data up to {report.newest}, {old(report.age_hours)} old of "
        f"{old(report.target_hours)} promised; {state} {_minute(report.stale_at)} UTC"
    )


def _catalogue(catalogue: CatalogueAge, report: FreshnessReport) -> str:
    until = catalogue.complete_until
    items = f"it holds all items that had arrived by {_minute(until)} UTC" if until else "it holds all known items"
    waits = f", {old(report.catalogue_age_hours or 0.0)} ago of {old(report.catalogue_target_hours)} promised"
    return f"{items}{waits if until else ''}; {catalogue.sentence}"


def _clock(clock: Clock) -> str:
    ends = f"ended {_minute(clock.ended_at)}" if clock.ended_at else f"should end {_minute(clock.expected_end) or '?'}"
    standing = f"{clock.standing}, lost" if clock.lost else f"{clock.standing}, {ends}"
    return f"run over {clock.span}, attempt {clock.attempt}: {standing}, deadline {_minute(clock.deadline)}"


def _minute(moment: str | None) -> str:
    return moment[5:16].replace("T", " ") if moment else ""

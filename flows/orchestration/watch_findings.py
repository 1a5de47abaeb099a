"""The findings of the watch: a page in Prefect's UI, and events as a problem begins, daily, and as it ends.

Each record is written after the server has the event, so a missing server delays events but loses none.
"""

import datetime as dt
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import httpx
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from pydantic import Field

from flows.orchestration import events
from flows.orchestration.catch_up import Started
from flows.orchestration.events import Event, Severity, send_waiting
from flows.presentation.markdown import page
from flows.presentation.model import Cell, Command, Section, table
from flows.presentation.wording import moment, versions
from infra.store.base import Store
from infra.store.records import find_record, update_record
from tasks.contracts.workspace import PROBLEM
from tasks.foundation.clock import Moment, old
from tasks.foundation.errors import ServerError
from tasks.foundation.records import Record
from tasks.monitoring.deadlines import Clock
from tasks.monitoring.freshness import FreshnessReport
from tasks.monitoring.problems import Problem, of_a_clock
from tasks.monitoring.progress import SpanRow
from tasks.running.stage_output import logger

RESOLVED = "millrace.problem.resolved"
REMIND = dt.timedelta(hours=23)  # the watch runs hourly, so at most a day passes


class Standing(Record):
    """A record in `watch/<lineage>/problems/`: a problem whose event the server has."""

    event: Event
    since: Moment
    sent_at: Moment
    times: int = Field(default=1, ge=1, description="how often it began; `times` and `reminders` tell its events apart")
    reminders: int = Field(ge=0)
    resolved_at: Moment | None = Field(description="end of the problem; null: it still stands")


def send_problems(
    store: Store, lineage: str, at: str, found: Collection[Event], past: Collection[Event], stays: Collection[str]
) -> None:
    """Send events of new problems, daily reminders of standing ones, and the end of others.

    Args:
        at: the time of the watch.
        found: the present problems.
        past: problems that were over when first seen; each is sent once.
        stays: ids of problems that still stand although they are not in `found`.
    """
    known = dict(_read(store, lineage))
    try:
        for event in found:
            _tell(store, event, known.get(event.what), at)
        for event in past:
            if event.what not in known:
                _send(store, Standing(event=event, since=at, sent_at=at, reminders=0, resolved_at=at), event.sentence)
        here = {event.what for event in found} | set(stays)
        for what, standing in known.items():
            if standing.resolved_at is None and what not in here:
                _resolve(store, standing, at)
    except (httpx.HTTPError, OSError, ServerError) as error:
        logger().warning("the next watch sends its events again: %s", error)


def _tell(store: Store, event: Event, before: Standing | None, at: str) -> None:
    if before is None or before.resolved_at is not None or before.event.event != event.event:
        times = before.times + 1 if before is not None else 1
        begun = Standing(event=event, since=at, sent_at=at, times=times, reminders=0, resolved_at=None)
        _send(store, begun, event.sentence)
    elif dt.datetime.fromisoformat(at) - dt.datetime.fromisoformat(before.sent_at) >= REMIND:
        again = before.model_copy(update={"event": event, "sent_at": at, "reminders": before.reminders + 1})
        _send(store, again, f"Still so, since {before.since[:16].replace('T', ' ')} UTC: {event.sentence}")


def _resolve(store: Store, standing: Standing, at: str) -> None:
    event = standing.event
    over = event.model_copy(update={"event": RESOLVED, "severity": "info", "payload": {"resolves": event.event}})
    events.deliver(store, over, f"This is over: {event.sentence}", f"{standing.times}", since=standing.since)
    _write(store, standing.model_copy(update={"resolved_at": at}))


def _send(store: Store, standing: Standing, sentence: str) -> None:
    which = f"{standing.times} {standing.reminders}"  # another watch at the same moment sends the same event
    events.deliver(store, standing.event, sentence, which, since=standing.since, reminder=standing.reminders)
    _write(store, standing)


def _read(store: Store, lineage: str) -> Iterator[tuple[str, Standing]]:
    for key in store.list(PROBLEM.within(lineage=lineage)):
        standing = find_record(store, key, Standing, "move the file away")
        if standing is not None:
            yield standing.event.what, standing


def _write(store: Store, standing: Standing) -> None:
    key = PROBLEM.key(lineage=standing.event.lineage, what=standing.event.what)

    def written(there: Standing | None) -> Standing | None:
        return standing if there is None or _order(there) < _order(standing) else None

    update_record(store, key, Standing, written, "move the file away")


def _order(standing: Standing) -> tuple[int, int, bool]:
    return standing.times, standing.reminders, standing.resolved_at is not None


LATE = "millrace.run.late"
WILL_BE_LATE = "millrace.run.will-be-late"
STALE = "millrace.stale"
CATALOGUE_STALE = "millrace.catalogue.stale"
MISSED = "millrace.span.missed"
GIVEN_UP = "millrace.run.given-up"

# States of a span that needs no run.
_OVER = ("Released", "Held", "Rejected", "Skipped", "Postponed", "Corrected", "Unfinished")


def send_events(store: Store, report: FreshnessReport, started: Started | None) -> None:
    """Send an event for each new, standing (daily) or ended problem, and all waiting events of the outbox."""
    send_waiting(store)
    open_ones = [row for row in report.spans if row.state not in _OVER]
    stays = {f"{kind}-{row.span}-v{row.version}" for row in open_ones for kind in ("given-up", "missed")}
    past = [_late_event(report, clock) for clock in report.clocks if clock.standing == "late" and clock.ended_at]
    send_problems(store, report.lineage, report.at, list(_events(report, started)), past, stays)


def _events(report: FreshnessReport, started: Started | None) -> Iterator[Event]:
    if started is not None and started.given_up:
        yield _given_up(report, started)
    yield from _late(report)
    yield from _stale(report)
    versions = {row.span: row.version for row in report.spans}
    for span in report.missed:
        yield Event(
            severity="warning",
            what=f"missed-{span}-v{versions.get(span, 1)}",
            lineage=report.lineage,
            event=MISSED,
            resource={
                "prefect.resource.id": f"millrace.span.{report.lineage}.{span}",
                "prefect.resource.name": span,
                "millrace.span": span,
                "millrace.lineage": report.lineage,
            },
            sentence=f"{span} has arrived and is due, but was not trained.",
            payload={"span": span},
        )


def _given_up(report: FreshnessReport, started: Started) -> Event:
    return Event(
        severity="critical",
        what=f"given-up-{started.span}-v{started.version}",
        lineage=report.lineage,
        event=GIVEN_UP,
        resource={
            "prefect.resource.id": f"millrace.span.{report.lineage}.{started.span}",
            "prefect.resource.name": started.span,
            "millrace.span": started.span,
            "millrace.lineage": report.lineage,
        },
        sentence=started.sentence,
        payload={"span": started.span},
    )


def _stale(report: FreshnessReport) -> Iterator[Event]:
    """Yield an event for each of the two ages above its target."""
    ages = {"newest": report.newest, "age_hours": report.age_hours, "target_hours": report.target_hours}
    waits = {"age_hours": report.catalogue_age_hours, "target_hours": report.catalogue_target_hours}
    if report.catalogue is not None:
        waits |= report.catalogue.model_dump(mode="json", include={"waiting"})
    kinds: dict[str, tuple[str, str, Severity, dict[str, Any]]] = {
        "stale": (STALE, "stale", "critical", ages),
        "catalogue stale": (CATALOGUE_STALE, "catalogue-stale", "warning", waits),
    }
    for problem in report.problems:
        if problem.kind in kinds:
            event, name, severity, payload = kinds[problem.kind]
            yield Event(
                what=name,
                severity=severity,
                lineage=report.lineage,
                event=event,
                resource={
                    "prefect.resource.id": f"millrace.lineage.{report.lineage}",
                    "prefect.resource.name": f"lineage {report.lineage}",
                },
                sentence=f"{problem.sentence} {problem.way_out}",
                payload=payload,
            )


def _late(report: FreshnessReport) -> Iterator[Event]:
    for clock in report.clocks:
        if clock.standing != "on time" and not clock.ended_at:
            yield _late_event(report, clock)


def _late_event(report: FreshnessReport, clock: Clock) -> Event:
    problem = of_a_clock(clock)
    assert problem is not None  # the run is late, or will be
    resource = {
        "prefect.resource.id": f"millrace.run.{clock.run_key}",
        "prefect.resource.name": f"{clock.span} attempt {clock.attempt}",
        "millrace.span": clock.span,
        "millrace.lineage": report.lineage,
    }
    if clock.flow_run:
        resource["millrace.flow-run"] = clock.flow_run
    return Event(
        severity="warning",
        what=f"late-{clock.run_key}-{clock.attempt}",
        lineage=report.lineage,
        event=LATE if clock.standing == "late" else WILL_BE_LATE,
        resource=resource,
        sentence=problem.sentence,
        payload={
            "class": clock.failure,
            "span": clock.span,
            "run_key": clock.run_key,
            "attempt": clock.attempt,
            "deadline": clock.deadline,
            "expected_end": clock.expected_end,
            "page": clock.page,
        },
    )


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

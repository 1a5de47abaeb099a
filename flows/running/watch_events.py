"""The watch's findings as Prefect events, for automations: when a problem appears, stays and is over."""

from collections.abc import Iterator
from typing import Any

from flows.running.catch_up import Started
from flows.running.events import Event, Severity, send_waiting
from flows.running.standing_problems import send_problems
from infra.store.base import Store
from tasks.monitoring.deadlines import Clock
from tasks.monitoring.freshness import FreshnessReport
from tasks.monitoring.problems import of_a_clock

LATE = "millrace.run.late"
WILL_BE_LATE = "millrace.run.will-be-late"
STALE = "millrace.stale"
CATALOGUE_STALE = "millrace.catalogue.stale"
MISSED = "millrace.span.missed"
GIVEN_UP = "millrace.run.given-up"

_OVER = (
    "Released",
    "Held",
    "Rejected",
    "Skipped",
    "Postponed",
    "Corrected",
    "Unfinished",
)  # states of a span that needs no run


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

"""The watch's findings as Prefect events, for automations. Each problem is sent once."""

from collections.abc import Iterator

from flows.running.events import Event, send_once
from flows.watching.starting import Started
from infra.store.base import Store
from tasks.monitoring.freshness import FreshnessReport
from tasks.monitoring.problems import of_a_clock

LATE = "millrace.run.late"
WILL_BE_LATE = "millrace.run.will-be-late"
STALE = "millrace.stale"
CATALOGUE_STALE = "millrace.catalogue.stale"
MISSED = "millrace.span.missed"
GIVEN_UP = "millrace.run.given-up"


def send_events(store: Store, report: FreshnessReport, started: Started | None) -> None:
    """Send an event for each problem that was not sent before."""
    for event in _events(report, started):
        send_once(store, event)


def _events(report: FreshnessReport, started: Started | None) -> Iterator[Event]:
    if started is not None and started.given_up:
        yield _given_up(report, started)
    yield from _late(report)
    yield from _stale(report)
    versions = {row.span: row.version for row in report.spans}
    for span in report.missed:
        yield Event(
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
    """Yield an event for each of the two ages that is beyond its target."""
    ages = {"newest": report.newest, "age_hours": report.age_hours, "target_hours": report.target_hours}
    waits = {"age_hours": report.catalogue_age_hours, "target_hours": report.catalogue_target_hours}
    if report.catalogue is not None:
        waits |= report.catalogue.model_dump(mode="json", include={"waiting"})
    kinds = {"stale": (STALE, "stale", ages), "catalogue stale": (CATALOGUE_STALE, "catalogue-stale", waits)}
    for problem in report.problems:
        if problem.kind in kinds:
            event, name, payload = kinds[problem.kind]
            yield Event(
                what=f"{name}-release-{report.release}",
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
        problem = of_a_clock(clock)
        if problem is None or clock.standing == "on time":
            continue
        event = LATE if clock.standing == "late" else WILL_BE_LATE
        resource = {
            "prefect.resource.id": f"millrace.run.{clock.run_key}",
            "prefect.resource.name": f"{clock.span} attempt {clock.attempt}",
            "millrace.span": clock.span,
            "millrace.lineage": report.lineage,
        }
        if clock.flow_run:
            resource["millrace.flow-run"] = clock.flow_run
        yield Event(
            what=f"{event.removeprefix('millrace.run.')}-{clock.run_key}-{clock.attempt}",
            lineage=report.lineage,
            event=event,
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

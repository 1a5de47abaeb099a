"""The watch's findings as Prefect events, for automations. Each problem is sent once.

Sent events are recorded in the workspace under `watch/`, so a new server or a second worker sends none twice.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from prefect.events import emit_event

from infra.store.base import Conflict, Store
from tasks.foundation.records import Record
from tasks.monitoring.freshness import FreshnessReport
from tasks.monitoring.problems import of_a_clock

LATE = "millrace.run.late"
WILL_BE_LATE = "millrace.run.will-be-late"
STALE = "millrace.stale"
CATALOGUE_STALE = "millrace.catalogue.stale"
MISSED = "millrace.span.missed"


class SentEvent(Record):
    """`watch/<lineage>/<problem>.json`: an event that was sent."""

    event: str
    at: str
    sentence: str


class Finding(NamedTuple):
    """An event to send. `problem` identifies it within its lineage, for ever."""

    problem: str
    event: str
    resource: dict[str, str]
    sentence: str
    payload: dict[str, Any]


def send_events(store: Store, report: FreshnessReport) -> None:
    """Send an event for each problem that was not sent before.

    A watch that is killed before the record is written sends the event again: twice is better than never.
    """
    prefix = f"watch/{report.lineage}"
    recorded = set(store.list(prefix))
    for finding in _findings(report):
        key = f"{prefix}/{finding.problem}.json"
        if key in recorded:
            continue
        payload = {"lineage": report.lineage, "sentence": finding.sentence, **finding.payload}
        emit_event(event=finding.event, resource=finding.resource, payload=payload)
        with contextlib.suppress(Conflict):  # another watch sent it at the same moment
            store.create(key, SentEvent(event=finding.event, at=report.at, sentence=finding.sentence).to_json())


def _findings(report: FreshnessReport) -> Iterator[Finding]:
    yield from _late(report)
    yield from _stale(report)
    versions = {row.span: row.version for row in report.spans}
    for span in report.missed:
        yield Finding(
            problem=f"missed-{span}-v{versions.get(span, 1)}",
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


def _stale(report: FreshnessReport) -> Iterator[Finding]:
    """Yield a finding for each of the two ages that is beyond its target."""
    ages = {"newest": report.newest, "age_hours": report.age_hours, "target_hours": report.target_hours}
    waits = {"age_hours": report.catalogue_age_hours, "target_hours": report.catalogue_target_hours}
    if report.catalogue is not None:
        waits |= report.catalogue.model_dump(mode="json", include={"waiting"})
    kinds = {"stale": (STALE, "stale", ages), "catalogue stale": (CATALOGUE_STALE, "catalogue-stale", waits)}
    for problem in report.problems:
        if problem.kind in kinds:
            event, name, payload = kinds[problem.kind]
            yield Finding(
                problem=f"{name}-release-{report.release}",
                event=event,
                resource={
                    "prefect.resource.id": f"millrace.lineage.{report.lineage}",
                    "prefect.resource.name": f"lineage {report.lineage}",
                },
                sentence=f"{problem.sentence} {problem.way_out}",
                payload=payload,
            )


def _late(report: FreshnessReport) -> Iterator[Finding]:
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
        yield Finding(
            problem=f"{event.removeprefix('millrace.run.')}-{clock.run_key}-{clock.attempt}",
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

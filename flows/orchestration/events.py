"""Prefect events, for automations and alerts, each sent once; the events of releases carry their record.

An event that the server does not accept stays in the workspace, in an outbox; the next stage or watch sends it.
"""

import contextlib
from typing import Any, Literal
from uuid import NAMESPACE_URL, uuid5

import httpx
from prefect import get_client
from prefect.events.schemas.events import Event as PrefectEvent
from prefect.events.schemas.events import RelatedResource, Resource
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL

from infra.compute.batch.listing import LiveJob
from infra.store.base import Conflict, Store
from infra.store.records import find_record
from tasks.contracts.kinds import is_refresh
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.workspace import SENT, WAITING
from tasks.foundation.clock import Moment, now
from tasks.foundation.errors import ServerError
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record
from tasks.monitoring.spending import Budget
from tasks.running.stage_output import logger
from tasks.runs.results import Judgement, Refusal

Severity = Literal["critical", "warning", "info"]  # as PagerDuty and Great Expectations name them


class Event(Record):
    """An event to send, with a permanent id within its lineage."""

    what: str
    event: str
    lineage: str
    severity: Severity
    resource: dict[str, str]
    sentence: str
    payload: dict[str, Any]


class WaitingEvent(Record):
    """A record in `outbox/<lineage>/`: an event that the server may not have yet."""

    event: Event
    at: Moment


class SentEvent(Record):
    """A record in `watch/<lineage>/`: an event that the server has."""

    event: str
    at: Moment
    sentence: str


def send_once(store: Store, event: Event) -> None:
    """Send an event unless it was sent before, and all waiting events; an event that can't be sent waits too.

    If the process is killed between the server's answer and the record, the event is sent again: at least once.
    """
    if store.exists(SENT.key(lineage=event.lineage, what=event.what)):
        return
    with contextlib.suppress(Conflict):  # it waits already
        store.create(WAITING.key(lineage=event.lineage, what=event.what), WaitingEvent(event=event, at=now()).to_json())
    send_waiting(store)


def send_waiting(store: Store) -> None:
    """Send the events of the outbox, and record each that the server accepts. Without a server they stay."""
    for key in store.list(WAITING.within()):
        waiting = find_record(store, key, WaitingEvent, "move the file away")
        if waiting is None:  # another process just sent it
            continue
        event = waiting.event
        if store.exists(SENT.key(lineage=event.lineage, what=event.what)):  # by a faster or a killed process
            store.delete(key)
            continue
        try:
            deliver(store, event, event.sentence, waiting.at)
        except (httpx.HTTPError, OSError, ServerError) as error:
            logger().warning("%s is kept in the workspace and sent later: %s", event.event, error)
            return
        with contextlib.suppress(Conflict):  # another process sent it at the same moment
            store.create(
                SENT.key(lineage=event.lineage, what=event.what),
                SentEvent(event=event.event, at=now(), sentence=event.sentence).to_json(),
            )
        store.delete(key)


def deliver(store: Store, event: Event, sentence: str, which: str, **more: Any) -> None:
    """Send an event to the server, and wait until it accepts the event.

    Args:
        sentence: text for people.
        which: tells it from the same event of another time; the server takes two with one `which` for one.
        more: additional entries of the payload.

    Raises:
        ServerError: no server is configured.
        httpx.HTTPError: the server is away, or did not accept the event.
    """
    if not PREFECT_API_URL.value():
        raise ServerError("PREFECT_API_URL is not set, so no Prefect server is known")
    dedup_key = f"{store.uri}#{event.lineage}/{event.what}"
    known = {"lineage": event.lineage, "sentence": sentence, "severity": event.severity, "dedup_key": dedup_key}
    body = PrefectEvent(
        id=uuid5(NAMESPACE_URL, f"{dedup_key} {event.event} {which}"),  # the same id if it is sent twice
        event=event.event,
        resource=Resource(event.resource),
        related=_related(),
        payload={**known, **event.payload, **more},
    )
    with get_client(sync_client=True) as client:
        client.request("POST", "/events", json=[body.model_dump(mode="json")])


def _related() -> list[RelatedResource]:
    if not flow_run.id:
        return []
    run = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.role": "flow-run"}
    return [RelatedResource({**run, "prefect.resource.name": flow_run.name or ""})]


RELEASED = "millrace.release.released"
REFRESHED = "millrace.release.refreshed"
REJECTED = "millrace.release.rejected"
ROLLED_BACK = "millrace.release.rolled-back"
NEAR_BUDGET = "millrace.budget.near"
BEYOND_PLAN = "millrace.job.beyond-plan"
ASKS = "millrace.gate.asks"


def release_made(release: Release, current: int | None, lineage: str) -> Event:
    """Return the event of a release that a run or a refresh made; `current` is the number of the serving release."""
    vectors = f"{plural(release.vectors, 'vector')} by model {release.model.of_items.version}"
    sentence = f"Release {release.number} of {release.span.name} has {vectors}."
    if release.model.items is not None:
        sentence = f"{sentence[:-1]}, and model {release.model.version} for queries."
    if release.refreshed is not None:
        sentence = f"Release {release.number} brings release {release.refreshed} up to date: {vectors}."
    if current is not None and current != release.number:
        sentence = f"{sentence} Release {current} serves on."
    event = RELEASED if release.refreshed is None else REFRESHED
    return _event(event, f"release-{release.number}", release, current, lineage, sentence)


def release_rolled_back(release: Release, before: Release | None, lineage: str) -> Event:
    """Return the event of a rollback; `before` was the current release."""
    instead = f" instead of release {_named(before)}" if before is not None else ""
    sentence = f"Release {_named(release)} is current again{instead}."
    return _event(ROLLED_BACK, f"rollback-{release.number}-{now()}", release, release.number, lineage, sentence)


def model_rejected(plan: RunPlan, judged: Judgement | Refusal, following: str = "") -> Event:
    """Return the event of a model, or of a refresh, that the gates refused.

    Args:
        following: a sentence about the start of the next span's training; empty for a refresh.
    """
    what = "refresh" if is_refresh(plan.run_key) else "model"
    return Event(
        what=f"rejected-{plan.run_key}",
        event=REJECTED,
        severity="warning",
        lineage=plan.config.lineage,
        resource=_resource_of(plan),
        sentence=f"The {what} of {plan.span.name} was rejected: {judged.why} {following}".rstrip(),
        payload={
            "span": plan.span.name,
            "run_key": plan.run_key,
            "next_start": following,
            "verdicts": [verdict.sentence for verdict in judged.all_verdicts],
        },
    )


def gate_asks(plan: RunPlan, judged: Judgement) -> Event:
    """Return the event of a model that waits for a person's answer."""
    assert judged.asked is not None
    return Event(
        what=f"asks-{plan.run_key}-{judged.number}",
        event=ASKS,
        severity="warning",
        lineage=plan.config.lineage,
        resource=_resource_of(plan),
        sentence=f"The model of {plan.span.name} waits for an answer until {judged.asked.until[:16]} UTC, and is then "
        f"rejected: {' '.join(judged.asks)} Answer by Resume on {judged.asked.page or 'the page of its flow run'}",
        payload={"span": plan.span.name, "run_key": plan.run_key, "question": judged.asked.model_dump(mode="json")},
    )


def _resource_of(plan: RunPlan) -> dict[str, str]:
    return {
        "prefect.resource.id": f"millrace.run.{plan.run_key}",
        "prefect.resource.name": plan.span.name,
        "millrace.span": plan.span.name,
        "millrace.lineage": plan.config.lineage,
    }


def _named(release: Release) -> str:
    return f"{release.number} of {release.span.name} (model {release.model.version})"


def job_beyond_plan(lineage: str, job: LiveJob) -> Event:
    """Return the event of a job that takes much longer than planned."""
    return Event(
        what=f"beyond-plan-{job.job}",
        event=BEYOND_PLAN,
        severity="warning",
        lineage=lineage,
        resource={
            "prefect.resource.id": f"millrace.job.{job.job}",
            "prefect.resource.name": job.name,
            "millrace.run": job.run_key,
            "millrace.lineage": lineage,
        },
        sentence=job.sentence,
        payload=job.model_dump(mode="json"),
    )


def near_budget(plan: RunPlan, budget: Budget) -> Event:
    """Return the event of a budget that is used to 80 %, by the dollars spent and planned."""
    return Event(
        what=f"budget-{budget.of}-{budget.name}",
        event=NEAR_BUDGET,
        severity="warning",
        lineage=plan.config.lineage,
        resource={
            "prefect.resource.id": f"millrace.budget.{plan.config.lineage}.{budget.of}",
            "prefect.resource.name": budget.name,
            "millrace.span": plan.span.name,
            "millrace.lineage": plan.config.lineage,
        },
        sentence=budget.sentence,
        payload=budget.model_dump(mode="json"),
    )


def _event(event: str, what: str, release: Release, current: int | None, lineage: str, sentence: str) -> Event:
    severity: Severity = "warning" if event == ROLLED_BACK else "info"
    return Event(
        what=what,
        event=event,
        severity=severity,
        lineage=lineage,
        resource={
            "prefect.resource.id": f"millrace.release.{release.number}",
            "prefect.resource.name": f"release {release.number}",
            "millrace.span": release.span.name,
            "millrace.lineage": lineage,
            "millrace.run": release.run_key,
        },
        sentence=sentence,
        payload={"current": current, "release": release.model_dump(mode="json")},
    )

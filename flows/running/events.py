"""Send Prefect events, for automations and alerts, each once.

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

from infra.store.base import Conflict, Store
from infra.store.records import find_record
from tasks.contracts.workspace import SENT, WAITING
from tasks.foundation.clock import Moment, now
from tasks.foundation.errors import ServerError
from tasks.foundation.records import Record
from tasks.running.stage_output import logger

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

"""Sends Prefect events, for automations and alerts.

Sent events are recorded in the workspace under `watch/`, so a new server or a second worker sends none twice.
"""

import contextlib
import threading
from typing import Any, NamedTuple

from prefect.events import emit_event
from prefect.events.worker import EventsWorker

from infra.store.base import Conflict, Store
from tasks.foundation.clock import now
from tasks.foundation.records import Record

LEAVE_SECONDS = 10.0  # the server has answered a moment ago


class SentEvent(Record):
    """`watch/<lineage>/<what>.json`: an event that was sent."""

    event: str
    at: str
    sentence: str


class Event(NamedTuple):
    """An event to send. `what` identifies it within its lineage, for ever."""

    what: str
    event: str
    lineage: str
    resource: dict[str, str]
    sentence: str
    payload: dict[str, Any]


def send_once(store: Store, event: Event) -> None:
    """Send an event unless it was sent before.

    A process that is killed before the record is written sends the event again: twice is better than never.
    """
    key = f"watch/{event.lineage}/{event.what}.json"
    if store.exists(key):
        return
    _send(event)
    with contextlib.suppress(Conflict):  # another process sent it at the same moment
        store.create(key, SentEvent(event=event.event, at=now(), sentence=event.sentence).to_json())


def send_now(event: Event) -> None:
    """Send an event from a command, which is not a flow run and ends at once; wait for it to leave."""
    _send(event)
    waiting = threading.Thread(target=EventsWorker.instance().wait_until_empty, daemon=True)
    waiting.start()
    waiting.join(LEAVE_SECONDS)


def _send(event: Event) -> None:
    payload = {"lineage": event.lineage, "sentence": event.sentence, **event.payload}
    emit_event(event=event.event, resource=event.resource, payload=payload)

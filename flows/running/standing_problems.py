"""Events of standing problems: sent when a problem appears, once a day while it stays, and when it is over.

Each record is written after the server has the event, so a missing server delays events but loses none.
"""

import datetime as dt
from collections.abc import Collection, Iterator

import httpx
from pydantic import Field

from flows.running import events
from flows.running.events import Event
from infra.store.base import Store
from infra.store.records import find_record, update_record
from tasks.contracts.workspace import PROBLEM
from tasks.foundation.clock import Moment
from tasks.foundation.errors import ServerError
from tasks.foundation.records import Record
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

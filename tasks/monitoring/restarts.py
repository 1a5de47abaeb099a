"""The runs that the watch started for a span, and when it may start the next one.

Only the rule and its record: flows/orchestration/catch_up.py asks the Prefect server and starts them.
"""

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field

from infra.store.base import Store
from infra.store.records import read_record, update_record
from tasks.contracts.workspace import STARTS
from tasks.foundation.clock import Moment
from tasks.foundation.records import Record

PAUSES = (dt.timedelta(0), dt.timedelta(hours=1), dt.timedelta(hours=4))  # before each start of a day
DAY = dt.timedelta(days=1)
_WAY_OUT = "move the file away"


class StartedRun(Record):
    """One run that the watch started."""

    number: int = Field(ge=1, description="number of the planned invocation; part of the idempotency key")
    flow_run: str
    at: Moment


class Starts(Record):
    """`watch/<lineage>/starts/<span>-v<version>.json`: also of runs that ended before they left another record."""

    span: str
    version: int
    starts: tuple[StartedRun, ...]


class Turn(NamedTuple):
    """Time of the next start. `given_up`: the day's starts are used up, and the last one has ended."""

    due: dt.datetime
    given_up: bool


def turn(starts: Sequence[StartedRun], ended: dt.datetime | None, at: dt.datetime) -> Turn:
    """Return the time of the next allowed start; `ended` is the end of the last run, None without one."""
    recent = [moment for start in starts if at - (moment := dt.datetime.fromisoformat(start.at)) < DAY]
    if len(recent) >= len(PAUSES):
        return Turn(recent[-len(PAUSES)] + DAY, True)
    if not recent or ended is None:
        return Turn(at, False)
    return Turn(ended + PAUSES[len(recent)], False)


def read(store: Store, lineage: str, span: str, version: int) -> Starts:
    """Return the starts so far. Raises StoreError: the record is not readable; names it."""
    key = _key(lineage, span, version)
    if not store.exists(key):
        return Starts(span=span, version=version, starts=())
    return read_record(store, key, Starts, _WAY_OUT)


def add(store: Store, lineage: str, before: Starts, start: StartedRun) -> None:
    """Record a start; the watch calls it only for a run that is not on record yet."""
    key = _key(lineage, before.span, before.version)

    def added(there: Starts | None) -> Starts:
        known = there or before  # another watch may have started one
        return known.model_copy(update={"starts": (*known.starts, start)})

    update_record(store, key, Starts, added, _WAY_OUT)


def _key(lineage: str, span: str, version: int) -> str:
    return STARTS.key(lineage=lineage, span=span, version=version)

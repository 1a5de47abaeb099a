"""Each time that a run is asked for: by whom, when it should end, when it did and how.

A run is the work, which is done once; an invocation is a flow run that brings it on. Its number is the attempt in the
flow run's name. Prefect's records may be gone, these stay.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Literal

from pydantic import Field, ValidationError

from infra.store import Conflict, Store
from tasks.contracts import RunPlan
from tasks.errors import FailureClass, StoreError
from tasks.ledger import now
from tasks.records import Record

State = Literal["Running", "Released", "Rejected", "Unfinished", "Failed", "Cancelled"]

_NUMBER = re.compile(r"(\d+)\.json")


class Invocation(Record):
    """`runs/<run key>/invocations/<number>.json`. Times are ISO 8601 in UTC."""

    version: Literal[1] = 1
    number: int = Field(ge=1)
    run_key: str
    span: str
    lineage: str
    flow_run: str = Field(description="id of the Prefect flow run; empty outside of one")
    page: str = Field(description="address of the flow run's page; empty outside of one")
    scheduled_at: str | None = Field(description="null: started by hand")
    began_at: str
    expected_seconds: float | None = Field(description="from begin to end, by the ledger's speeds; null: no record yet")
    deadline: str = Field(description="freshness.deadline_hours after the scheduled time, else after the begin")
    ended_at: str | None = Field(description="null: it runs now, or its orchestrator was killed")
    state: State = Field(description="Unfinished: it ended well before a release or a rejection, as a backfill may ask")
    failure: FailureClass | None
    message: str


def begin(
    store: Store,
    plan: RunPlan,
    *,
    flow_run: str = "",
    page: str = "",
    scheduled_at: str | None = None,
    expected_seconds: float | None = None,
) -> Invocation:
    """Open the record of one more invocation of a run."""
    began = now()
    counted_from = dt.datetime.fromisoformat(scheduled_at or began)
    deadline = counted_from + dt.timedelta(hours=plan.config.freshness.deadline_hours)
    while True:
        numbers = _numbers(store, plan.run_key)
        invocation = Invocation(
            number=max(numbers, default=0) + 1,
            run_key=plan.run_key,
            span=plan.span.name,
            lineage=plan.config.lineage,
            flow_run=flow_run,
            page=page,
            scheduled_at=scheduled_at,
            began_at=began,
            expected_seconds=expected_seconds,
            deadline=deadline.isoformat(timespec="seconds"),
            ended_at=None,
            state="Running",
            failure=None,
            message="",
        )
        try:
            store.create(_key(invocation), invocation.to_json())
        except Conflict:  # somebody else asked at the same moment
            continue
        return invocation


def end(
    store: Store, invocation: Invocation, state: State, failure: FailureClass | None = None, message: str = ""
) -> Invocation:
    """Close the record."""
    ended = {"ended_at": now(), "state": state, "failure": failure, "message": message}
    closed = invocation.model_copy(update=ended)
    store.write(_key(closed), closed.to_json())
    return closed


def of_run(store: Store, run_key: str) -> list[Invocation]:
    """All invocations of a run, oldest first.

    Raises:
        StoreError: a record is not readable; names the file.
    """
    return [_read(store, f"{_prefix(run_key)}/{number}.json") for number in _numbers(store, run_key)]


def everywhere(store: Store) -> list[Invocation]:
    """The invocations of all runs of the workspace, in the order in which they began.

    Raises:
        StoreError: a record is not readable; names the file.
    """
    keys = [key for key in store.list("runs") if key.split("/")[2:3] == ["invocations"]]
    return sorted((_read(store, key) for key in keys), key=lambda one: one.began_at)


def _read(store: Store, key: str) -> Invocation:
    try:
        return Invocation.model_validate_json(store.read(key))
    except ValidationError as error:
        raise StoreError(
            f"{store.uri}/{key} is no record of an invocation: {error.errors()[0]['msg']}; move the file away"
        ) from error


def _numbers(store: Store, run_key: str) -> list[int]:
    names = (key.rpartition("/")[2] for key in store.list(_prefix(run_key)))
    return sorted(int(found[1]) for name in names if (found := _NUMBER.fullmatch(name)))


def _key(invocation: Invocation) -> str:
    return f"{_prefix(invocation.run_key)}/{invocation.number}.json"


def _prefix(run_key: str) -> str:
    return f"runs/{run_key}/invocations"

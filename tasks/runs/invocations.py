"""The invocations of a run: which flow run started it, when it should end, when it ended and how.

A run is the work, which is done once; an invocation is a flow run that works on it. Its number is the attempt in the
flow run's name. These records stay when Prefect's are gone.
"""

import datetime as dt
from typing import Literal

from pydantic import Field

from infra.store.base import Conflict, Store
from infra.store.records import update_record
from tasks.contracts.kinds import lineage_lock
from tasks.contracts.runs import RunPlan, RunState
from tasks.contracts.workspace import INVOCATION
from tasks.foundation.clock import Moment, now
from tasks.foundation.errors import FailureClass, StoreError
from tasks.foundation.records import Record


class Invocation(Record):
    """`runs/<run key>/invocations/<number>.json`. Times are ISO 8601 in UTC."""

    version: Literal[1] = 1
    number: int = Field(ge=1)
    run_key: str
    span: str
    lineage: str
    flow_run: str = Field(description="id of the Prefect flow run; empty outside of one")
    page: str = Field(description="address of the flow run's page; empty outside of one")
    scheduled_at: Moment | None = Field(description="null: started by hand")
    began_at: Moment
    expected_seconds: float | None = Field(description="from begin to end, by the ledger; null: no record yet")
    deadline: Moment = Field(description="freshness.deadline_hours after the scheduled time, else after the begin")
    ended_at: Moment | None = Field(description="null: it runs now, or its orchestrator was killed")
    state: RunState
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
    """Open the record of a new invocation of a run."""
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
            state=RunState.RUNNING,
            failure=None,
            message="",
        )
        try:
            store.create(_key(invocation), invocation.to_json())
        except Conflict:  # another process began one at the same moment
            continue
        return invocation


def end(
    store: Store, invocation: Invocation, state: RunState, failure: FailureClass | None = None, message: str = ""
) -> Invocation:
    """Close the record."""
    ended = {"ended_at": now(), "state": state, "failure": failure, "message": message}
    closed = invocation.model_copy(update=ended)
    there = update_record(
        store,
        _key(closed),
        Invocation,
        lambda there: None if there and there.ended_at else closed,
        "move the file away",
    )
    return there or closed


def is_held(store: Store, lineage: str) -> bool:
    """Return True if a process holds the lineage; a killed run's lock expires soon.

    Takes no lock. Also True if the lock can't be read, so that no run is reported lost without proof.
    """
    try:
        return store.peek(lineage_lock(lineage)) is not None
    except (OSError, StoreError):
        return True


def _numbers(store: Store, run_key: str) -> list[int]:
    keys = store.list(INVOCATION.within(run=run_key))
    return sorted(found["number"] for key in keys if (found := INVOCATION.match(key)))


def _key(invocation: Invocation) -> str:
    return INVOCATION.key(run=invocation.run_key, number=invocation.number)

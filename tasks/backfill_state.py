"""How far a backfill has come: one record beside its plan, written anew after every step.

It tells people. What is done is decided by the results of the stages alone, so a lost or stale record harms nothing.
"""

from __future__ import annotations

import contextlib
from typing import Literal

from pydantic import Field, ValidationError

from infra.store import Conflict, Store
from tasks.backfill_plan import Asked, BackfillPlan, SpanPlan
from tasks.contracts import SpanRef
from tasks.errors import FailureClass, StoreError
from tasks.ledger import now
from tasks.records import Record

State = Literal["Planned", "Running", "Paused", "Done", "Released", "Rejected", "Failed", "Cancelled"]
Step = Literal["done", "run", "running", "failed", "not asked", "refused"]


class SpanState(Record):
    """One span of a backfill. A stage is `run` while it waits, and stays so where it was not reached."""

    span: SpanRef
    run_key: str | None = Field(description="null: not planned yet, as the checkpoint before it is not made")
    train: Step
    evaluate: Step
    infer: Step
    release: Step
    failure: FailureClass | None
    message: str
    flow_run: str = Field(description="id of the span's flow run; empty where it had none this time")

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.train, self.evaluate, self.infer, self.release


class BackfillState(Record):
    """`backfills/<id>/state.json`. Times are ISO 8601 in UTC."""

    version: Literal[1] = 1
    id: str
    lineage: str
    branch: str | None
    first: str
    last: str
    stages: tuple[Asked, ...]
    reason: str
    state: State
    sentence: str
    attempt: int = Field(ge=0, description="how often it was begun")
    flow_run: str
    page: str
    began_at: str
    updated_at: str
    ended_at: str | None
    release: int | None = Field(description="the release that it made")
    spans: tuple[SpanState, ...]

    @property
    def steps(self) -> tuple[int, int]:
        """(done, all) of the stages that were asked for."""
        told = [step for span in self.spans for step in span.steps if step not in ("not asked", "refused")]
        return sum(step == "done" for step in told), len(told)


def planned(plan: BackfillPlan) -> BackfillState:
    """The state of a backfill that has not begun."""
    at = now()
    return BackfillState(
        id=plan.id,
        lineage=plan.lineage,
        branch=plan.branch,
        first=plan.first,
        last=plan.last,
        stages=plan.stages,
        reason=plan.reason,
        state="Planned",
        sentence="",
        attempt=0,
        flow_run="",
        page="",
        began_at=at,
        updated_at=at,
        ended_at=None,
        release=None,
        spans=tuple(map(_planned, plan.spans)),
    )


def begin(store: Store, plan: BackfillPlan, flow_run: str, page: str) -> BackfillState:
    """Keep the plan, unless an earlier attempt did, and open the record of this attempt."""
    with contextlib.suppress(Conflict):
        store.create(f"backfills/{plan.id}/plan.json", plan.to_json())
    before = read(store, plan.id)
    begun = {"state": "Running", "attempt": before.attempt + 1 if before else 1, "flow_run": flow_run, "page": page}
    state = planned(plan).model_copy(update=begun)
    keep(store, state)
    return state


def keep(store: Store, state: BackfillState) -> None:
    """Write the record."""
    store.write(_key(state.id), state.model_copy(update={"updated_at": now()}).to_json())


def read(store: Store, name: str) -> BackfillState | None:
    """The record of a backfill; None where there is none of this name, its id.

    Raises:
        StoreError: it is not readable; names the file.
    """
    try:
        return BackfillState.model_validate_json(store.read(_key(name)))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise StoreError(
            f"{store.uri}/{_key(name)} is no record of a backfill: {error.errors()[0]['msg']}; move the file away, "
            "nothing of the work is lost"
        ) from error


def everywhere(store: Store) -> list[BackfillState]:
    """All backfills of the workspace, in the order in which they were last begun.

    Raises:
        StoreError: a record is not readable; names the file.
    """
    names = [key.split("/")[1] for key in store.list("backfills") if key.endswith("/state.json")]
    states = (read(store, name) for name in names)
    return sorted((state for state in states if state is not None), key=lambda state: state.began_at)


def _planned(span: SpanPlan) -> SpanState:
    return SpanState(
        span=span.span,
        run_key=span.run_key,
        train=span.train,
        evaluate=span.evaluate,
        infer=span.infer,
        release=span.release,
        failure=None,
        message="",
        flow_run="",
    )


def _key(name: str) -> str:
    return f"backfills/{name}/state.json"

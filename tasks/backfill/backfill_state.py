"""The state of a backfill: a record next to its plan, written after every step.

It is only for display. The stages' results decide the work left, so a lost or stale record does no harm.
"""

import contextlib
from typing import Literal

from pydantic import Field

from infra.store.base import Conflict, Store
from infra.store.records import find_record
from tasks.backfill.backfill_plan import BACKFILL_STAGES, BackfillPlan, BackfillStage, SpanPlan
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.workspace import BACKFILL, BACKFILL_STATE, PLAN
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, FailureClass
from tasks.foundation.records import Record
from tasks.runs import branches, lineage
from tasks.runs.invocations import is_held
from tasks.runs.plan import plan_window, read_plan

State = Literal["Planned", "Running", "Paused", "Done", "Released", "Rejected", "Failed", "Cancelled"]
Step = Literal["done", "run", "running", "failed", "not asked", "refused"]


class SpanState(Record):
    """One span of a backfill. A stage is `run` until it starts, even if it is never reached."""

    span: SpanRef
    run_key: str | None = Field(description="key of the run; null: not known until the checkpoint before it is made")
    train: Step = Field(description="state of train")
    evaluate: Step = Field(description="state of evaluate")
    infer: Step = Field(description="state of infer")
    release: Step = Field(description="state of release")
    failure: FailureClass | None
    message: str
    flow_run: str = Field(description="id of the span's flow run in this attempt; empty: none")

    def step(self, stage: str) -> Step:
        """Return the state of a stage."""
        step: Step = getattr(self, stage)
        return step

    @property
    def steps(self) -> tuple[Step, ...]:
        """The states of all stages, in order."""
        return tuple(self.step(stage) for stage in BACKFILL_STAGES)

    @property
    def unfinished(self) -> bool:
        """True if a stage other than release runs or is still to run."""
        return any(self.step(stage) in ("run", "running") for stage in BACKFILL_STAGES if stage != "release")


class BackfillState(Record):
    """`backfills/<id>/state.json`. Times are ISO 8601 in UTC."""

    version: Literal[1] = 1
    id: str
    lineage: str
    branch: str | None
    first: str
    last: str
    stages: tuple[BackfillStage, ...]
    reason: str
    state: State
    sentence: str
    attempt: int = Field(ge=0, description="number of starts")
    flow_run: str
    page: str
    began_at: str
    updated_at: str
    ended_at: str | None
    release: int | None = Field(description="number of the release that the backfill made; null: none")
    spans: tuple[SpanState, ...]

    @property
    def steps(self) -> tuple[int, int]:
        """The numbers of done and of all requested stages."""
        steps = [step for span in self.spans for step in span.steps if step not in ("not asked", "refused")]
        return sum(step == "done" for step in steps), len(steps)


def planned(plan: BackfillPlan) -> BackfillState:
    """Return the state of a backfill that has not started."""
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
    """Save the plan, unless an earlier attempt did, and start the record of this attempt."""
    with contextlib.suppress(Conflict):
        store.create(BACKFILL.key(backfill=plan.id), plan.to_json())
    before = read(store, plan.id)
    begun = {"state": "Running", "attempt": before.attempt + 1 if before else 1, "flow_run": flow_run, "page": page}
    state = planned(plan).model_copy(update=begun)
    save(store, state)
    return state


def save(store: Store, state: BackfillState) -> None:
    """Write the record."""
    store.write(BACKFILL_STATE.key(backfill=state.id), state.model_copy(update={"updated_at": now()}).to_json())


def read(store: Store, name: str) -> BackfillState | None:
    """Return the record of the backfill with this id; None if there is no such record.

    Raises:
        StoreError: the record is not readable; names the file.
    """
    return find_record(store, BACKFILL_STATE.key(backfill=name), BackfillState, "move the file away, no work is lost")


def read_all(store: Store) -> list[BackfillState]:
    """Return all backfills of the workspace, in the order of their last start.

    Raises:
        StoreError: a record is not readable; names the file.
    """
    found = (BACKFILL_STATE.match(key) for key in store.list(BACKFILL_STATE.within()))
    states = (read(store, fields["backfill"]) for fields in found if fields)
    return sorted((state for state in states if state is not None), key=lambda state: state.began_at)


def _planned(span: SpanPlan) -> SpanState:
    steps: dict[str, Step] = {stage: span.action(stage) for stage in BACKFILL_STAGES}
    return SpanState(
        span=span.span,
        run_key=span.run_key,
        **steps,
        failure=None,
        message="",
        flow_run="",
    )


def run_of(store: Store, plan: BackfillPlan, span: SpanPlan) -> RunPlan:
    """Plan the run over a span: the lineage's own run, a run started before on the branch, or the next on the branch.

    Raises:
        Conflict: the branch has changed since the backfill was planned.
        StoreError: a plan or checkpoint is not readable.
    """
    on = span.branch or plan.on
    if span.run_key is not None and store.exists(PLAN.key(run=span.run_key)):
        started = read_plan(store, span.run_key)
        config = plan.config.model_copy(update={"lineage": started.config.lineage})
        return started.model_copy(update={"workspace": store.uri, "config": config})
    config = plan.config.model_copy(update={"lineage": on})
    run = plan_window(store, config, span.window, lineage.head(store, on))
    if span.run_key is not None and run.run_key != span.run_key:
        raise Conflict(f"branch {on} has changed since the backfill was planned; start the backfill again")
    return run


def locks(plan: BackfillPlan) -> tuple[str, ...]:
    """Return the lineages to lock: the branch, and the given lineage if its own runs have work left."""
    own = [plan.lineage] if any(span.branch is None for span in plan.to_do) else []
    return (*own, *([plan.branch] if plan.branch is not None else []))


def is_lost(store: Store, backfill: BackfillState) -> bool:
    """Return True if a running backfill has lost its process: no process holds its lock."""
    return backfill.state == "Running" and not is_held(store, backfill.branch or backfill.lineage)


def check_not_overtaken(store: Store, plan: BackfillPlan) -> None:
    """Check, before a release, that the lineage would continue the backfill's branch.

    Raises:
        ConfigError: the lineage has adopted another branch since the backfill was planned.
    """
    on = branches.active(store, plan.lineage)
    if plan.branch is not None and on not in (plan.on, plan.branch):
        raise ConfigError(
            f"runs of lineage {plan.lineage} now continue {on}, but this backfill was planned when they continued "
            f"{plan.on}: nothing was released and {plan.branch} was not adopted. Start it again to plan it on {on}"
        )


def adopt(store: Store, plan: BackfillPlan) -> None:
    """Let runs of the lineage continue the backfill's branch, whose last model was released.

    Raises:
        Conflict: another process moved the pointer meanwhile.
    """
    if plan.branch is not None:
        branches.adopt(store, plan.lineage, plan.branch, instead_of=plan.on)

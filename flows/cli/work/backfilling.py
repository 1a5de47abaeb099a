"""`millrace backfill`, `backfills` and `backfill-control`: the plan, the flow, the records."""

import os
import shlex
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from pydantic import Field

from flows.cli.terminal.console import note, say, show_table
from flows.cli.terminal.run_options import RunOptions
from flows.cli.work.running import run_flow
from flows.presentation.wording import moment
from infra import prefect_server
from infra.store.base import Store
from tasks.backfill import backfill_state
from tasks.backfill.backfill_plan import BACKFILL_STAGES, BackfillPlan, SpanPlan, duration
from tasks.backfill.backfill_runs import is_lost
from tasks.backfill.backfill_state import BackfillState, State, planned
from tasks.backfill.planner import plan_backfill
from tasks.contracts.references import SpanRef
from tasks.foundation.errors import ConfigError, HostError
from tasks.foundation.records import Record

Action = Literal["pause", "resume", "cancel"]

_SIGNS = {"not asked": "-", "run": "to do", "refused": "refused"}


class BackfillOutput(Record):
    """`millrace backfill`. A refused model is a result like any other, and so is having nothing to do."""

    ui_url: str | None = Field(description="of the Prefect server; null where none was needed")
    run_url: str | None = Field(description="the flow run's page")
    backfill: BackfillState


class BackfillPlanOutput(Record):
    """`millrace backfill --dry-run`."""

    id: str
    lineage: str
    on: str = Field(description="the lineage that runs of this name continue now: itself, or a branch adopted before")
    branch: str | None = Field(description="where spans are trained; null: none has to be")
    base: str | None = Field(description="key of the checkpoint that the branch starts from; null: it has none")
    stages: tuple[str, ...]
    parallel: int = Field(description="spans evaluated and inferred at once")
    reason: str
    spans: tuple[SpanPlan, ...]
    invalidated: tuple[SpanRef, ...] = Field(description="beyond the range; to be trained again after it")
    expected_seconds: float | None = Field(description="wall time of all that is left; null: a stage was never done")
    expected_dollars: float | None = Field(description="null: a stage was never done")
    attempts_seen: int = Field(description="earlier attempts that the expectation rests on")
    sentences: tuple[str, ...]
    command: str = Field(description="starts it")


class BackfillLine(Record):
    """One backfill of `millrace backfills`."""

    id: str
    state: State | Literal["Lost"] = Field(description="Lost: its process is gone and left no end on record")
    sentence: str
    lineage: str
    branch: str | None
    first: str
    last: str
    stages: tuple[str, ...]
    reason: str
    attempt: int
    done: int = Field(description="stages of spans")
    total: int = Field(description="stages of spans")
    failed: tuple[str, ...] = Field(description="spans of which a stage failed in the last attempt")
    began_at: str
    updated_at: str
    ended_at: str | None
    page: str


class BackfillsOutput(Record):
    """`millrace backfills`, in the order of their last start."""

    backfills: tuple[BackfillLine, ...]


class ControlOutput(Record):
    """`millrace backfill-control`."""

    id: str
    action: Action
    flow_run: str = Field(description="id of the backfill's flow run")
    sentence: str


@dataclass(frozen=True)
class BackfillRequest:
    """The range of spans, their stages, and how to run them."""

    first: str
    last: str
    stages: tuple[str, ...]
    parallel: int
    reason: str

    def plan(self, options: RunOptions) -> BackfillPlan:
        """Return the plan. Raises StageError as `plan_backfill` does."""
        return plan_backfill(
            options.store, options.config(), self.first, self.last, self.stages, self.reason, self.parallel
        )


def dry_run(options: RunOptions, request: BackfillRequest) -> BackfillPlanOutput:
    """Return the plan; writes nothing and needs no server. Raises StageError as `BackfillRequest.plan` does."""
    plan = request.plan(options)
    shared = {
        name: getattr(plan, name) for name in BackfillPlanOutput.model_fields if name in BackfillPlan.model_fields
    }
    base = plan.base.prefix if plan.base else None
    more = {"base": base, "sentences": plan.sentences, "command": _command(plan, options)}
    return BackfillPlanOutput(**{**shared, **more})


def backfill(options: RunOptions, request: BackfillRequest, verbose: bool) -> BackfillOutput:
    """Carry out the plan, or the rest of it. Where nothing is left to do, no server is needed.

    Raises:
        StageError: planning failed, or a stage; with the class of the first failure.
    """
    plan = request.plan(options)
    if not plan.to_do:
        state: State = "Rejected" if plan.refused else "Done"
        done = planned(plan).model_copy(update={"state": state, "sentence": " ".join(plan.sentences)})
        return BackfillOutput(ui_url=None, run_url=None, backfill=done)
    for sentence in plan.sentences:
        note(sentence)
    span_range = (request.first, request.last, request.stages, request.parallel, request.reason)
    ended = run_flow("backfill", verbose, options.store.uri, *span_range, False, *options.flow_settings())
    assert isinstance(ended.value, BackfillState)
    return BackfillOutput(ui_url=ended.ui_url, run_url=ended.run_url, backfill=ended.value)


def backfills(store: Store) -> BackfillsOutput:
    """Return all backfills. Raises StoreError if a record is not readable."""
    return BackfillsOutput(backfills=tuple(_line(store, state) for state in backfill_state.read_all(store)))


def control(store: Store, name: str, action: Action) -> ControlOutput:
    """Pause, resume or cancel a backfill; its process reacts within some seconds.

    Raises:
        ConfigError: no backfill's ID begins with `name`, or its state does not allow the action.
        HostError: no Prefect server answers.
    """
    state = _named(store, name)
    server = prefect_server.running(prefect_server.state_home())
    if server is None:
        raise HostError(
            "no Prefect server is running, so no backfill is; start it: millrace up; or set PREFECT_API_URL"
        )
    os.environ.update(prefect_server.client_environment(server))
    from flows.running.backfill_control import control_flow_run  # not before the environment is set

    return ControlOutput(
        id=state.id, action=action, flow_run=state.flow_run, sentence=control_flow_run(UUID(state.flow_run), action)
    )


def show_plan(output: BackfillPlanOutput) -> None:
    """Print the output for people."""
    rows = [
        [
            span.span.name,
            f"v{span.span.version}",
            *(_SIGNS.get(span.action(stage), span.action(stage)) for stage in BACKFILL_STAGES),
            duration(span.expected_seconds) if span.left and span.expected_seconds is not None else "",
            span.why,
        ]
        for span in output.spans
    ]
    show_table(["span", "version", *BACKFILL_STAGES, ">expected", "~why"], rows)
    for sentence in output.sentences:
        say(sentence)
    if any(span.left for span in output.spans):
        say(f"To start it: {output.command}")


def show(output: BackfillOutput) -> None:
    """Print the output for people."""
    state = output.backfill
    branch = f", branch {state.branch}" if state.branch else ""
    say(f"backfill {state.id}{branch}" + (f": {output.run_url}" if output.run_url else ""))
    rows = [
        [s.span.name, f"v{s.span.version}", *(_SIGNS.get(step, step) for step in s.steps), s.run_key or "", s.message]
        for s in state.spans
    ]
    show_table(["span", "version", *BACKFILL_STAGES, "run", "failure"], rows)
    say(f"{state.state}: {state.sentence}")


def show_all(output: BackfillsOutput) -> None:
    """Print the output for people."""
    if not output.backfills:
        say("no backfill yet")
        return
    rows = [
        [
            one.id,
            one.state,
            f"{one.first} to {one.last}",
            f"{one.done} of {one.total}",
            ", ".join(one.failed),
            str(one.attempt),
            moment(one.began_at),
            moment(one.updated_at),
            one.reason,
        ]
        for one in output.backfills
    ]
    show_table(["backfill", "state", "spans", ">stages", "failed", ">attempt", "began", "updated", "~reason"], rows)


def show_control(output: ControlOutput) -> None:
    """Print the output for people."""
    say(f"backfill {output.id}: {output.sentence}")


def _command(plan: BackfillPlan, options: RunOptions) -> str:
    parts = ["millrace", "backfill", "--from", plan.first, "--to", plan.last]
    if plan.stages != BACKFILL_STAGES:
        parts += ["--stages", ",".join(plan.stages)]
    parts += ["--parallel", str(plan.parallel)]
    parts += ["--reason", plan.reason] if plan.reason else []
    return shlex.join([*parts, *options.arguments()])


def _line(store: Store, state: BackfillState) -> BackfillLine:
    shared = {name: getattr(state, name) for name in BackfillLine.model_fields if name in BackfillState.model_fields}
    done, total = state.steps
    failed = tuple(span.span.name for span in state.spans if span.failure is not None)
    lost = {"state": "Lost"} if is_lost(store, state) else {}
    return BackfillLine(**{**shared, **lost, "done": done, "total": total, "failed": failed})


def _named(store: Store, name: str) -> BackfillState:
    known = backfill_state.read_all(store)
    found = [state for state in known if state.id.startswith(name)]
    if len(found) != 1 or not name:
        there = ", ".join(state.id for state in known) or "none"
        raise ConfigError(f"{store.uri} holds {len(found) or 'no'} backfill(s) {name!r}; it holds {there}")
    if found[0].ended_at is not None or not found[0].flow_run:
        raise ConfigError(f"backfill {found[0].id} is over: {found[0].state}. {found[0].sentence}")
    return found[0]

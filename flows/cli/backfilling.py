"""`millrace backfill`, `backfills`, `backfill-control`: the plan before anything starts, then the flow; the records."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from uuid import UUID

from pydantic import Field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from configs.load import load_config
from flows.cli.running import run_flow
from infra import prefect_server
from infra.store import Store
from tasks import backfill_state
from tasks.backfill import ASKED, plan_backfill
from tasks.backfill_plan import BackfillPlan, SpanPlan, duration
from tasks.backfill_runs import is_lost
from tasks.backfill_state import BackfillState, State, planned
from tasks.contracts import SpanRef
from tasks.errors import ConfigError, HostError
from tasks.records import Record

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
    on: str
    branch: str | None
    base: str | None = Field(description="key of the checkpoint that the branch begins with; null: it begins anew")
    stages: tuple[str, ...]
    parallel: int
    reason: str
    spans: tuple[SpanPlan, ...]
    invalidated: tuple[SpanRef, ...]
    expected_seconds: float | None
    expected_dollars: float | None
    attempts_seen: int
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
    total: int
    failed: tuple[str, ...] = Field(description="spans of which a stage failed in the last attempt")
    began_at: str
    updated_at: str
    ended_at: str | None
    page: str


class BackfillsOutput(Record):
    """`millrace backfills`, in the order in which they were last begun."""

    backfills: tuple[BackfillLine, ...]


class ControlOutput(Record):
    """`millrace backfill-control`."""

    id: str
    action: Action
    flow_run: str
    sentence: str


def dry_run(
    store: Store,
    first: str,
    last: str,
    stages: str,
    parallel: int,
    reason: str,
    place: Path | None,
    overrides: Sequence[str],
) -> BackfillPlanOutput:
    """The plan; writes nothing and needs no server. Raises StageError as `plan_backfill` does."""
    plan = plan_backfill(store, load_config(place, overrides), first, last, _stages(stages), reason, parallel)
    shared = {
        name: getattr(plan, name) for name in BackfillPlanOutput.model_fields if name in BackfillPlan.model_fields
    }
    base = plan.base.prefix if plan.base else None
    more = {"base": base, "sentences": plan.sentences, "command": _command(plan, place, overrides)}
    return BackfillPlanOutput(**{**shared, **more})


def backfill(
    store: Store,
    first: str,
    last: str,
    stages: str,
    parallel: int,
    reason: str,
    place: Path | None,
    overrides: Sequence[str],
    verbose: bool,
) -> BackfillOutput:
    """Carry the plan out, or what is left of it; without anything to do no server is needed.

    Raises:
        StageError: of the class of the first failure, or of what stopped the backfill.
    """
    asked = _stages(stages)
    plan = plan_backfill(store, load_config(place, overrides), first, last, asked, reason, parallel)
    if not plan.to_do:
        state: State = "Rejected" if plan.refused else "Done"
        told = planned(plan).model_copy(update={"state": state, "sentence": " ".join(plan.sentences)})
        return BackfillOutput(ui_url=None, run_url=None, backfill=told)
    for sentence in plan.sentences:
        print(sentence, file=sys.stderr, flush=True)
    where = str(place) if place else None
    done = run_flow(
        "backfill", verbose, store.uri, first, last, asked, parallel, reason, False, where, tuple(overrides)
    )
    assert isinstance(done.value, BackfillState)
    return BackfillOutput(ui_url=done.ui_url, run_url=done.run_url, backfill=done.value)


def backfills(store: Store) -> BackfillsOutput:
    """All backfills that were ever begun. Raises StoreError if a record is not readable."""
    return BackfillsOutput(backfills=tuple(_line(store, state) for state in backfill_state.everywhere(store)))


def control(store: Store, name: str, action: Action) -> ControlOutput:
    """Pause, resume or cancel a backfill; its process hears of it within some seconds.

    Raises:
        ConfigError: there is none of this id (its beginning is enough), or it is in no state for this.
        HostError: no Prefect server answers.
    """
    state = _named(store, name)
    server = prefect_server.running(prefect_server.state_home())
    if server is None:
        raise HostError("no Prefect server is running, so no backfill is; see: millrace up, or set PREFECT_API_URL")
    os.environ.update(prefect_server.client_environment(server))
    from flows.controlling import ask  # not before the environment is set

    return ControlOutput(
        id=state.id, action=action, flow_run=state.flow_run, sentence=ask(UUID(state.flow_run), action)
    )


def show_plan(output: BackfillPlanOutput) -> None:
    """As people read it."""
    rows = [
        [
            span.span.name,
            f"v{span.span.version}",
            *(_SIGNS.get(span.action(stage), span.action(stage)) for stage in ASKED),
            duration(span.expected_seconds) if span.left and span.expected_seconds is not None else "",
            span.why,
        ]
        for span in output.spans
    ]
    _table(["span", "version", *ASKED, ">expected", "why"], rows)
    for sentence in output.sentences:
        _say(sentence)
    if any(span.left for span in output.spans):
        _say(f"To start it: {output.command}")


def show(output: BackfillOutput) -> None:
    """As people read it."""
    state = output.backfill
    branch = f", branch {state.branch}" if state.branch else ""
    _say(f"backfill {state.id}{branch}" + (f": {output.run_url}" if output.run_url else ""))
    rows = [
        [s.span.name, f"v{s.span.version}", *(_SIGNS.get(step, step) for step in s.steps), s.run_key or "", s.message]
        for s in state.spans
    ]
    _table(["span", "version", *ASKED, "run", ""], rows)
    _say(f"{state.state}: {state.sentence}")


def show_all(output: BackfillsOutput) -> None:
    """As people read it."""
    if not output.backfills:
        _say("no backfill yet")
        return
    rows = [
        [
            one.id,
            one.state,
            f"{one.first} to {one.last}",
            f"{one.done} of {one.total}",
            ", ".join(one.failed),
            str(one.attempt),
            one.began_at[:16].replace("T", " "),
            one.updated_at[:16].replace("T", " "),
            one.reason,
        ]
        for one in output.backfills
    ]
    _table(["backfill", "state", "spans", ">stages", "failed", ">attempt", "began", "last heard of", "reason"], rows)


def show_control(output: ControlOutput) -> None:
    """As people read it."""
    _say(f"backfill {output.id}: {output.sentence}")


def _stages(told: str) -> tuple[str, ...]:
    return tuple(stage.strip() for stage in told.split(",") if stage.strip())


def _command(plan: BackfillPlan, place: Path | None, overrides: Sequence[str]) -> str:
    parts = ["millrace", "backfill", "--from", plan.first, "--to", plan.last]
    if plan.stages != ASKED:
        parts += ["--stages", ",".join(plan.stages)]
    parts += ["--parallel", str(plan.parallel)]
    parts += ["--reason", plan.reason] if plan.reason else []
    parts += ["--workspace", plan.workspace]
    parts += ["--config", str(place)] if place else []
    for override in overrides:
        parts += ["--set", override]
    return shlex.join(parts)


def _line(store: Store, state: BackfillState) -> BackfillLine:
    shared = {name: getattr(state, name) for name in BackfillLine.model_fields if name in BackfillState.model_fields}
    done, total = state.steps
    failed = tuple(span.span.name for span in state.spans if span.failure is not None)
    lost = {"state": "Lost"} if is_lost(store, state) else {}
    return BackfillLine(**{**shared, **lost, "done": done, "total": total, "failed": failed})


def _named(store: Store, name: str) -> BackfillState:
    known = backfill_state.everywhere(store)
    found = [state for state in known if state.id.startswith(name)]
    if len(found) != 1 or not name:
        there = ", ".join(state.id for state in known) or "none"
        raise ConfigError(f"{store.uri} holds {len(found) or 'no'} backfill(s) {name!r}; it holds {there}")
    if found[0].ended_at is not None or not found[0].flow_run:
        raise ConfigError(f"backfill {found[0].id} is over: {found[0].state}. {found[0].sentence}")
    return found[0]


def _table(columns: list[str], rows: list[list[str]]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        name = column.removeprefix(">")
        table.add_column(name, justify="right" if name != column else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)


def _say(text: str) -> None:
    _console().print(text, markup=False, highlight=False, soft_wrap=True)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 160)

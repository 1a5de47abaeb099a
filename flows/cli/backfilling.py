"""`millrace backfill`, with `list`, `pause`, `resume` and `cancel`: the plan, the flow, the records."""

import os
import shlex
from collections.abc import Callable
from typing import Annotated, Literal
from uuid import UUID

import typer
from pydantic import Field

from flows.cli.flow_runs import run_flow
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note
from flows.cli.terminal.options import RunOptions
from flows.presentation.model import Parts, Table, table
from flows.presentation.wording import moment
from infra import prefect_server
from infra.store.base import Store
from tasks.campaigns.campaign import BACKFILL_STAGES, BackfillPlan, Campaign, CampaignSummary, Cell
from tasks.campaigns.planner import plan_backfill
from tasks.campaigns.stored import is_lost, read_all
from tasks.foundation.clock import duration
from tasks.foundation.errors import ConfigError, HostError
from tasks.foundation.records import Record
from tasks.runs.plan import begun_with

Action = Literal["pause", "resume", "cancel"]

BackfillId = Annotated[str, typer.Argument(metavar="ID", help="ID of the backfill; its first characters are enough.")]
_SIGNS = {"not asked": "-", "run": "to do"}


class BackfillOutput(Record):
    """`millrace backfill`. A refused model, or nothing to do, is a normal result."""

    ui_url: str | None = Field(description="address of the Prefect server; null: none was needed")
    run_url: str | None = Field(description="address of the flow run's page")
    backfill: Campaign


class BackfillPlanOutput(Campaign):
    """`millrace backfill --dry-run`."""

    base: str | None = Field(description="key of the checkpoint that the branch starts from; null: from nothing")
    sentences: tuple[str, ...]
    command: str = Field(description="command that starts it")


class BackfillLine(CampaignSummary):
    """One backfill of `millrace backfill list`."""

    done: int = Field(description="stages of spans that are done")
    total: int = Field(description="stages of spans in all")
    failed: tuple[str, ...] = Field(description="spans with a failed stage in the last attempt")


class BackfillsOutput(Record):
    """`millrace backfill list`, in the order of their last start."""

    backfills: tuple[BackfillLine, ...]


class ControlOutput(Record):
    """`millrace backfill pause`, `resume` and `cancel`."""

    id: str
    action: Action
    flow_run: str = Field(description="id of the backfill's flow run")
    sentence: str


def backfill_page(output: BackfillOutput | BackfillPlanOutput) -> Parts:
    """Yield the plan, or how each span ended."""
    if isinstance(output, BackfillPlanOutput):
        yield _cells(output, {">expected": _expected, "~why": lambda cell: cell.why})
        yield from output.sentences
        if any(span.left for span in output.spans):
            yield f"To start it: {output.command}"
        return
    state = output.backfill
    branch = f", branch {state.branch}" if state.branch else ""
    yield f"backfill {state.id}{branch}" + (f": {output.run_url}" if output.run_url else "")
    yield _cells(state, {"run": lambda cell: cell.run_key or "", "failure": lambda cell: cell.message})
    yield f"{state.state}: {state.sentence}"


def _cells(campaign: Campaign, more: dict[str, Callable[[Cell], str]]) -> Table:
    rows = [
        [
            cell.span.name,
            f"v{cell.span.version}",
            *(_SIGNS.get(step, step) for step in cell.steps),
            *(column(cell) for column in more.values()),
        ]
        for cell in campaign.spans
    ]
    return table("", ["span", "version", *BACKFILL_STAGES, *more], rows)


def _expected(cell: Cell) -> str:
    return duration(cell.expected_seconds) if cell.expected_seconds else ""


@command(backfill_page)
def backfill(
    options: RunOptions,
    first: Annotated[str, typer.Option("--from", help="First span, for example 2021-Q1.")],
    last: Annotated[str, typer.Option("--to", help="Last span; only this one is released.")],
    stages: Annotated[
        str, typer.Option(help="Stages to run.", show_default="all: train, evaluate, infer, release")
    ] = ",".join(BACKFILL_STAGES),
    parallel: Annotated[int, typer.Option(min=1, max=16, help="Spans to evaluate and infer in parallel.")] = 2,
    reason: Annotated[str, typer.Option(help="Reason, shown with the backfill later.")] = "",
    dry_run: Annotated[bool, typer.Option(help="Only print the plan.", show_default=False)] = False,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
) -> BackfillOutput | BackfillPlanOutput:
    """Bring a range of spans up to date: train corrected spans again on a branch, and run missing stages.

    It prints its plan first. The same command continues a backfill that stopped.
    """
    names = tuple(name.strip() for name in stages.split(",") if name.strip())
    plan = plan_backfill(options.store, options.config(), first, last, names, reason, parallel)
    if dry_run:
        return BackfillPlanOutput(
            **plan.only(Campaign),
            base=plan.base.prefix if plan.base else None,
            sentences=plan.sentences,
            command=_command(plan, options),
        )
    if not plan.to_do:
        return BackfillOutput(ui_url=None, run_url=None, backfill=plan.without_work)
    for sentence in plan.sentences:
        note(sentence)
    ended = run_flow(
        "backfill", verbose, options.store.uri, first, last, names, parallel, reason, False, *options.flow_settings()
    )
    assert isinstance(ended.value, Campaign)
    return BackfillOutput(ui_url=ended.ui_url, run_url=ended.run_url, backfill=ended.value)


def list_page(output: BackfillsOutput) -> Parts:
    """Yield a row for each backfill."""
    if not output.backfills:
        yield "no backfill yet"
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
    columns = ["backfill", "state", "spans", ">stages", "failed", ">attempt", "began", "updated", "~reason"]
    yield table("", columns, rows)


@command(list_page, name="backfill list")
def list_backfills(store: Store) -> BackfillsOutput:
    """List all backfills with their progress and failures."""
    return BackfillsOutput(backfills=tuple(_line(store, state) for state in read_all(store)))


def control_page(output: ControlOutput) -> Parts:
    """Yield the effect on the backfill."""
    yield f"backfill {output.id}: {output.sentence}"


@command(control_page, name="backfill pause")
def pause(store: Store, name: BackfillId) -> ControlOutput:
    """Pause a running backfill: the stages that run are finished, no other starts."""
    return _control(store, name, "pause")


@command(control_page, name="backfill resume")
def resume(store: Store, name: BackfillId) -> ControlOutput:
    """Let a paused backfill go on."""
    return _control(store, name, "resume")


@command(control_page, name="backfill cancel")
def cancel(store: Store, name: BackfillId) -> ControlOutput:
    """Cancel a running or paused backfill."""
    return _control(store, name, "cancel")


def _control(store: Store, name: str, action: Action) -> ControlOutput:
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
    from flows.orchestration.backfill_page import control_flow_run  # not before the environment is set

    return ControlOutput(
        id=state.id, action=action, flow_run=state.flow_run, sentence=control_flow_run(UUID(state.flow_run), action)
    )


def _command(plan: BackfillPlan, options: RunOptions) -> str:
    parts = ["millrace", "backfill", "--from", plan.first, "--to", plan.last]
    if plan.stages != BACKFILL_STAGES:
        parts += ["--stages", ",".join(plan.stages)]
    parts += ["--parallel", str(plan.parallel)]
    parts += ["--reason", plan.reason] if plan.reason else []
    return shlex.join([*parts, *options.arguments()])


def _line(store: Store, state: Campaign) -> BackfillLine:
    done, total = state.steps
    failed = tuple(span.span.name for span in state.spans if span.failure is not None)
    lost = {"state": "Lost"} if is_lost(store, state) else {}
    return BackfillLine(**{**state.only(CampaignSummary), **lost}, done=done, total=total, failed=failed)


def _named(store: Store, name: str) -> Campaign:
    known = read_all(store)
    found = begun_with([state.id for state in known], name, "backfill")
    if found is None:
        there = ", ".join(state.id for state in known) or "none"
        raise ConfigError(f"{store.uri}: there is no backfill {name!r}; it holds {there}")
    (state,) = (each for each in known if each.id == found)
    if state.ended_at is not None or not state.flow_run:
        raise ConfigError(f"backfill {state.id} is over: {state.state}. {state.sentence}")
    return state

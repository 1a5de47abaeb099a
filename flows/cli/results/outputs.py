"""What the commands print, as records: `--json` prints them as they are, `show.py` for people.

docs/json.md is made from their descriptions: after a change, `make docs`. All is read from the workspace; Prefect is
never asked.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

import tasks.runs.releases
from infra.store.base import Store
from tasks.contracts.checkpoints import CurvePoint
from tasks.contracts.evaluation import SliceMetrics
from tasks.contracts.outcomes import Check, HealthOutcome, TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.references import SpanRef
from tasks.contracts.results import StageResult
from tasks.contracts.runs import Release, RunPlan, RunState
from tasks.contracts.spans import first_day
from tasks.contracts.stages import Stage
from tasks.contracts.usage import GraphUse
from tasks.contracts.workspace import RESULT
from tasks.foundation.errors import ConfigError, StoreError
from tasks.foundation.records import Record
from tasks.runs import ledger
from tasks.runs.host_findings import last_findings
from tasks.runs.ledger import LedgerRecord
from tasks.runs.plan import planned_runs, read_plan
from tasks.runs.results import read_judgement, read_result
from tasks.runs.run_report import RunReport, run_report


class StageLine(Record):
    """One stage of a run."""

    stage: Stage
    done: bool
    cached: bool = Field(description="done before the command ran")
    attempts: int
    seconds: float = Field(description="wall time of all its attempts")


class RunOutput(Record):
    """`millrace run`. A refused model is a result like any other."""

    state: RunState | Literal["NothingToDo"]
    sentence: str = Field(
        description="why it was rejected or is held and what comes next, or why there is nothing to do; else empty"
    )
    ui_url: str | None = Field(description="of the Prefect server; null where none was needed")
    run_url: str | None = Field(description="the flow run's page, with its log")
    report: RunReport | None = Field(description="null where there was nothing to do")
    stages: tuple[StageLine, ...]


class PlanOutput(Record):
    """What a run would do."""

    run_key: str
    span: SpanRef
    window: tuple[SpanRef, ...] = Field(description="the spans that the run trains on")
    history: tuple[str, ...] = Field(description="names of the spans that the lineage trained on before")
    parent: str | None = Field(description="key of the checkpoint that training starts from")
    parent_step: int | None
    again: tuple[str, ...] = Field(
        description="spans that are trained again from the last accepted checkpoint, since later models were rejected"
    )


class DryRunOutput(Record):
    """`millrace run --dry-run`. `plan` is null where there is nothing to do; `sentence` says why."""

    config: dict[str, Any] = Field(description="the resolved settings, with their keys in YAML")
    plan: PlanOutput | None = Field(description="null where there is nothing to do")
    sentence: str = Field(description="why there is nothing to do; else empty")


class UnreadableRelease(Record):
    number: int
    trouble: str = Field(description="the file, what is wrong with it, and the way out")


class ReleasesOutput(Record):
    """`millrace releases`, oldest first."""

    current: int | None = Field(description="number of the current release; null before the first")
    releases: tuple[Release, ...] = Field(description="those whose record is readable")
    unreadable: tuple[UnreadableRelease, ...]
    pruned: tuple[int, ...] = Field(description="numbers of those whose model or vectors millrace prune has deleted")


class StageCheck(Check):
    stage: Stage


class StageGraphs(GraphUse):
    stage: Stage


class ReportOutput(Record):
    """`millrace report`."""

    report: RunReport
    window: tuple[SpanRef, ...]
    stages: tuple[StageLine, ...]
    checks: tuple[StageCheck, ...] = Field(description="of validate and health; of a refusal by health too")
    quarantined: dict[str, int] = Field(description="reason -> rows set apart by validate")
    losses: tuple[CurvePoint, ...] = Field(description="what training logged, by global step")
    curve: tuple[CurvePoint, ...] = Field(description="holdout metrics found during training, by global step")
    development: tuple[CurvePoint, ...] = Field(description="those of the development rows of train.keep_best")
    kept_step: int | None = Field(description="the step whose weights were kept; null: the last one")
    rows_replayed: int = Field(description="pairs that came from earlier spans")
    slices: tuple[SliceMetrics, ...]
    graphs: tuple[StageGraphs, ...] = Field(description="of warmup and train, where the device compiles")
    ledger: tuple[LedgerRecord, ...] = Field(description="one record for each attempt")


def releases(store: Store) -> ReleasesOutput:
    """Return all releases. Raises StoreError if the pointer is not readable; a release that is not hides no other."""
    _, pointer = tasks.runs.releases.read_pointer(store)
    readable, unreadable = [], []
    numbers = {*tasks.runs.releases.numbers(store), *([pointer.release] if pointer else [])}  # its own may be gone
    for number in sorted(numbers):
        try:
            readable.append(tasks.runs.releases.read(store, number))
        except StoreError as error:
            unreadable.append(UnreadableRelease(number=number, trouble=str(error)))
    return ReleasesOutput(
        current=pointer.release if pointer else None,
        releases=tuple(readable),
        unreadable=tuple(unreadable),
        pruned=tuple(sorted(tasks.runs.releases.pruned(store))),
    )


def last_run(store: Store, span: str | None) -> str:
    """Return the key of the run that was tried last, over this span if one is given. Raises ConfigError: no run."""
    keys = planned_runs(store)
    if span is not None:
        first_day(span)  # a name in no known form gets that error
        keys = [key for key in keys if read_plan(store, key).span.name == span]
    if not keys:
        raise ConfigError(f"{store.uri} holds no run{f' over span {span}' if span else ''}; begin one: millrace run")
    tried = [record.run_key for record in ledger.records(store) if record.run_key in keys]
    return tried[-1] if tried else keys[-1]


def report(store: Store, run_key: str) -> ReportOutput:
    """Return all of one run, also of one that has not ended.

    Raises:
        ConfigError: there is no such run.
        StoreError: a record of the run is not readable; names the file.
    """
    keys = planned_runs(store)
    if run_key not in keys:
        raise ConfigError(f"{store.uri} holds no run {run_key}; list the runs with: millrace history")
    plan = read_plan(store, run_key)
    attempts = tuple(ledger.records(store, run_key))
    results = [result for stage in Stage if (result := read_result(store, run_key, stage)) is not None]
    judged = read_judgement(store, run_key)
    trained = next((r.outcome for r in results if isinstance(r.outcome, TrainOutcome)), None)
    validated = next((r.outcome for r in results if isinstance(r.outcome, ValidateOutcome)), None)
    return ReportOutput(
        report=run_report(store, plan),
        window=plan.window,
        stages=stage_lines(store, run_key, attempts, cached=()),
        checks=(*(check for result in results for check in _checks(result)), *_refusals(store, attempts, results)),
        quarantined=validated.reasons if validated else {},
        losses=trained.losses if trained else (),
        curve=trained.curve if trained else (),
        development=trained.development if trained else (),
        kept_step=trained.kept_step if trained else None,
        rows_replayed=trained.rows_replayed if trained else 0,
        graphs=tuple(graphs for result in results for graphs in _graphs(result)),
        slices=(judged.slices or judged.outcome.slices) if judged else (),
        ledger=attempts,
    )


def plan_output(plan: RunPlan) -> PlanOutput:
    """Return the part of a plan that differs from run to run."""
    return PlanOutput(
        run_key=plan.run_key,
        span=plan.span,
        window=plan.window,
        history=tuple(rows.span.name for rows in plan.history),
        parent=plan.parent.prefix if plan.parent else None,
        parent_step=plan.parent.step if plan.parent else None,
        again=tuple(span.name for span in plan.branch.again) if plan.branch else (),
    )


def stage_lines(
    store: Store, run_key: str, attempts: tuple[LedgerRecord, ...], cached: tuple[Stage, ...]
) -> tuple[StageLine, ...]:
    """Return one line for every stage, also for those that the run has not reached."""
    return tuple(
        StageLine(
            stage=stage,
            done=store.exists(RESULT.key(run=run_key, stage=stage)),
            cached=stage in cached,
            attempts=sum(record.stage is stage for record in attempts),
            seconds=round(sum(record.wall_seconds for record in attempts if record.stage is stage), 3),
        )
        for stage in Stage
    )


def _checks(result: StageResult) -> list[StageCheck]:
    if isinstance(result.outcome, ValidateOutcome | HealthOutcome):
        return [StageCheck(stage=result.outcome.stage, **check.model_dump()) for check in result.outcome.checks]
    return []


def _refusals(store: Store, attempts: Sequence[LedgerRecord], results: Sequence[StageResult]) -> list[StageCheck]:
    """Return the checks for which health refused its machines the last time; none once health has passed."""
    if any(isinstance(result.outcome, HealthOutcome) for result in results):
        return []
    found = last_findings(store, [record for record in attempts if record.stage is Stage.health])
    return [StageCheck(stage=Stage.health, **check.model_dump()) for check in found]


def _graphs(result: StageResult) -> list[StageGraphs]:
    outcome = result.outcome
    if isinstance(outcome, WarmupOutcome | TrainOutcome) and outcome.graphs:
        return [StageGraphs(stage=outcome.stage, **outcome.graphs.model_dump())]
    return []

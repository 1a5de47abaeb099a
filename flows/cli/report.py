"""`millrace report`: one run in full, read from the workspace; Prefect is never asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from flows.cli.terminal import console
from flows.cli.terminal.command import command
from flows.cli.terminal.options import write
from flows.presentation import terminal
from flows.presentation.run.report import run_html, run_page
from infra.store.base import Store
from tasks.contracts.checkpoints import CurvePoint
from tasks.contracts.evaluation import SliceMetrics
from tasks.contracts.outcomes import Check, HealthOutcome, TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.references import SpanRef
from tasks.contracts.results import StageResult
from tasks.contracts.spans import first_day
from tasks.contracts.stages import Stage
from tasks.contracts.usage import GraphUse
from tasks.contracts.workspace import RESULT
from tasks.foundation.errors import ConfigError
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
    cached: bool = Field(description="true: done before the command ran")
    attempts: int
    seconds: float = Field(description="wall time of all its attempts, in seconds")


class StageCheck(Check):
    stage: Stage


class StageGraphs(GraphUse):
    stage: Stage


class ReportOutput(Record):
    """`millrace report`."""

    report: RunReport
    window: tuple[SpanRef, ...]
    stages: tuple[StageLine, ...]
    checks: tuple[StageCheck, ...] = Field(description="checks of validate and health")
    quarantined: dict[str, int] = Field(description="rows set apart by validate, by reason")
    losses: tuple[CurvePoint, ...] = Field(description="losses that training logged, by global step")
    curve: tuple[CurvePoint, ...] = Field(description="holdout metrics within the training, by global step")
    development: tuple[CurvePoint, ...] = Field(
        description="metrics of the development rows of train.keep_best, by global step"
    )
    kept_step: int | None = Field(description="step whose weights were kept; null: the last one")
    rows_replayed: int = Field(description="pairs that came from earlier spans")
    slices: tuple[SliceMetrics, ...]
    graphs: tuple[StageGraphs, ...] = Field(
        description="compiled graphs of warmup and train; empty on devices that don't compile"
    )
    ledger: tuple[LedgerRecord, ...] = Field(description="attempts, one record each")


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


def of_run(store: Store, run_key: str) -> ReportOutput:
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


@command()
def report(
    store: Store,
    span: Annotated[str | None, typer.Option(help="Show the last run over this span.")] = None,
    run_key: Annotated[str | None, typer.Option("--run", help="Show this run; default: the last one.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one HTML file instead of printing.")] = None,
    as_json: bool = False,
) -> ReportOutput | None:
    """Show one run in full: each stage, costs, failures, settings, files."""
    if span is not None and run_key is not None:
        raise ConfigError("report: give --span or --run, not both")
    key = run_key or last_run(store, span)
    if html is not None:
        write(html, run_html(store, key))
    if as_json:
        return of_run(store, key)
    if html is None:
        console.show(terminal.page(run_page(store, key)))
    return None


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

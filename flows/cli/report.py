"""`millrace report`: one run in full, read from the workspace; Prefect is never asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field

from configs.prices import read_prices
from configs.schema.operations import PriceList
from flows.cli.terminal.command import command
from flows.cli.terminal.options import spans, write
from flows.presentation.model import Page, Parts
from flows.presentation.run.report import run_html, run_page, shortened_page
from infra.store.base import Store
from tasks.contracts.evaluation import ByQueries, Override, Role, SliceMetrics, Verdict
from tasks.contracts.outcomes import Check, HealthOutcome, StageResult, TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.references import CurvePoint, SpanRef
from tasks.contracts.spans import first_day
from tasks.contracts.stages import Stage
from tasks.contracts.usage import GraphUse
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.monitoring.history import RunLine, line_of
from tasks.monitoring.spending import Costs, costs_of
from tasks.monitoring.timeline import timeline
from tasks.runs.host_records import last_findings
from tasks.runs.ledger import PricedAttempt
from tasks.runs.plan import find_run
from tasks.runs.run import Run, read_run, read_runs
from tasks.runs.snapshot import Snapshot


class RunReport(RunLine):
    """One run as people and scripts see it. Fields of stages that the run has not reached are null."""

    version: Literal[1] = 1
    verdicts: tuple[Verdict, ...]
    overrides: tuple[Override, ...] = Field(
        default=(), description="decisions of people to release despite refusing gates"
    )
    metrics: dict[str, float] | None = Field(description="over the whole holdout, unseen and seen queries together")
    by_queries: ByQueries | None = Field(default=None, description="the same for unseen and for seen queries apart")
    champion_by_queries: ByQueries | None = Field(default=None, description="the champion's, on the same rows")
    holdout_rows: int | None = Field(default=None, description="rows of the holdout that the metrics are computed over")
    sampled_from: int | None = Field(
        default=None, description="holdout rows that the sample was drawn from; null: all were measured"
    )
    pairs: int | None = Field(default=None, description="holdout rows that are pairs: ranking metrics are over these")
    items: int | None = Field(default=None, description="number of items that are ranked for each row")
    champion: dict[str, float] | None = Field(description="metrics of the champion on the same rows")
    champion_version: str | None = Field(description="model version of the champion; null before the first release")
    model_version: str | None = Field(description="model version of the release")
    vectors: int | None = Field(description="vectors of the release")
    seconds: float = Field(description="wall time of all attempts of all stages, in seconds")
    cost: float | None = Field(description="cost of all attempts, in dollars; null: a machine has no price")
    cached: tuple[Stage, ...] = Field(description="stages that were done before this invocation")


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
    costs: Costs = Field(description="dollars by stage and purpose, and the prices behind them")
    ledger: tuple[PricedAttempt, ...] = Field(description="attempts, one record each")


def last_run(store: Store, span: str | None) -> str:
    """Return the key of the run that was tried last, over this span if one is given. Raises ConfigError: no run."""
    if span is not None:
        first_day(span)  # a name in no known form gets that error
    runs = [run for run in read_runs(Snapshot(store), ()) if span in (None, run.span)]
    if not runs:
        raise ConfigError(f"{store.uri} holds no run{f' over span {span}' if span else ''}; begin one: millrace run")
    return max(runs, key=lambda run: run.attempts[-1].started_at if run.attempts else "").run_key


def of_run(store: Store, run_key: str, prices: Sequence[PriceList] = ()) -> ReportOutput:
    """Return all of one run, also of one that has not ended; `prices` are lists at which its cost is shown too.

    Raises:
        ConfigError: there is no such run.
        StoreError: a record of the run is not readable; names the file.
    """
    run = read_run(Snapshot(store, strict=True), run_key)
    judged, results = run.judgement, list(run.results.values())
    trained, validated = run.outcome(Stage.train), run.outcome(Stage.validate)
    trained = trained if isinstance(trained, TrainOutcome) else None
    return ReportOutput(
        report=report_of(run, cached=()),
        window=run.plan.window if run.plan else (),
        stages=stage_lines(run, cached=()),
        checks=(*(check for result in results for check in _checks(result)), *_refusals(store, run)),
        quarantined=validated.reasons if isinstance(validated, ValidateOutcome) else {},
        losses=trained.losses if trained else (),
        curve=trained.curve if trained else (),
        development=trained.development if trained else (),
        kept_step=trained.kept_step if trained else None,
        rows_replayed=trained.rows_replayed if trained else 0,
        graphs=tuple(graphs for result in results for graphs in _graphs(result)),
        slices=judged.slices if judged else (),
        costs=costs_of([run]).at(prices) if prices else costs_of([run]),
        ledger=tuple(PricedAttempt.of(one, prices) for one in run.attempts),
    )


def report_of(run: Run, cached: tuple[Stage, ...]) -> RunReport:
    """Return the report of a run; `cached` are the stages that were done before."""
    judged = run.judgement
    measured = judged.outcome if judged else None
    return RunReport(
        **line_of(run),
        verdicts=judged.all_verdicts if judged else (),
        overrides=judged.overrides if judged else (),
        metrics=measured.challenger if measured else None,
        by_queries=run.by_queries,
        champion_by_queries=measured.by_queries.get(Role.champion) if measured else None,
        holdout_rows=measured.holdout_rows if measured else None,
        sampled_from=measured.sampled_from if measured else None,
        pairs=measured.holdout_pairs if measured else None,
        items=measured.ranked_among if measured else None,
        champion=measured.champion if measured else None,
        champion_version=measured.champion_version if measured else None,
        model_version=run.release.model.version if run.release else None,
        vectors=run.vectors,
        seconds=round(run.wall_seconds, 3),
        cost=run.totals.cost,
        cached=cached,
    )


def report_page(page: Page) -> Parts:
    """Return the page, which is shown whole."""
    return (page,)


@command(report_page)
def report(
    store: Store,
    span: Annotated[str | None, typer.Option(autocompletion=spans, help="Show the last run over this span.")] = None,
    run_key: Annotated[
        str | None,
        typer.Option("--run", help="Key of the run, or its beginning; default: the last run."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one HTML file instead of printing.")] = None,
    otlp: Annotated[
        Path | None,
        typer.Option(help="Write the run's timeline as spans of OpenTelemetry (OTLP/JSON) instead; - prints it."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print each stage, costs, settings and files too.", show_default=False)
    ] = False,
    prices: Annotated[
        Path | None, typer.Option(help="A YAML file of price lists; shows the cost at these prices too.")
    ] = None,
    as_json: bool = False,
) -> ReportOutput | Page | None:
    """Show one run: its end, gates, stages and what to do; with --full everything."""
    if span is not None and run_key is not None:
        raise ConfigError("report: give --span or --run, not both")
    if otlp is not None and (html is not None or as_json):
        raise ConfigError("report: --otlp goes alone, without --html and --json")
    lists = () if prices is None else read_prices(prices, "--prices ")
    key = last_run(store, span) if run_key is None else find_run(store, run_key)
    if otlp is not None:
        _write_timeline(store, key, otlp)
        return None
    if html is not None:
        write(html, run_html(store, key, lists))
    if as_json:
        return of_run(store, key, lists)
    if html is not None:
        return None
    page = run_page(store, key, lists)
    return page if full else shortened_page(read_run(Snapshot(store), key), page, bool(lists))


def _write_timeline(store: Store, run_key: str, file: Path) -> None:
    spans = timeline(read_run(Snapshot(store, strict=True), run_key))
    if str(file) == "-":
        typer.echo(spans, nl=False)
    else:
        write(file, spans)


def stage_lines(run: Run, cached: tuple[Stage, ...]) -> tuple[StageLine, ...]:
    """Return one line for every stage, even if the run has not reached it."""
    return tuple(
        StageLine(
            stage=stage,
            done=run.stage(stage).done,
            cached=stage in cached,
            attempts=len(run.stage(stage).attempts),
            seconds=round(run.stage(stage).wall_seconds, 3),
        )
        for stage in Stage
    )


def _checks(result: StageResult) -> list[StageCheck]:
    if isinstance(result.outcome, ValidateOutcome | HealthOutcome):
        return [StageCheck(stage=result.outcome.stage, **check.model_dump()) for check in result.outcome.checks]
    return []


def _refusals(store: Store, run: Run) -> list[StageCheck]:
    """Return the checks for which health refused its machines the last time; none once health has passed."""
    if run.stage(Stage.health).done:
        return []
    found = last_findings(store, run.stage(Stage.health).attempts)
    return [StageCheck(stage=Stage.health, **check.model_dump()) for check in found]


def _graphs(result: StageResult) -> list[StageGraphs]:
    outcome = result.outcome
    if isinstance(outcome, WarmupOutcome | TrainOutcome) and outcome.graphs:
        return [StageGraphs(stage=outcome.stage, **outcome.graphs.model_dump())]
    return []

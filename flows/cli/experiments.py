"""`millrace try` and `millrace compare`: a span with other settings, without a release; runs next to each other."""

import re
import shlex
from pathlib import Path, PurePath
from typing import Annotated

import typer
from pydantic import Field

from configs.schema.config import Config
from flows.cli.flow_runs import run_flow
from flows.cli.report import RunReport, StageLine, report_of, stage_lines
from flows.cli.running import stages_table
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note
from flows.cli.terminal.options import RunOptions, spans, write
from flows.presentation import html, queries
from flows.presentation.model import Parts, Section, ended_as, table
from flows.presentation.run.comparison import comparison_page, cost_tables, metrics_table
from flows.presentation.stages import evaluate
from flows.presentation.wording import NONE, dollars, gate_name
from infra.store.base import Conflict, Store
from tasks.campaigns import trying
from tasks.campaigns.campaign import Campaign
from tasks.contracts.comparison import Comparison, CostPoint
from tasks.contracts.evaluation import ByQueries, refusals, undecided
from tasks.contracts.runs import RunState
from tasks.contracts.spans import first_day
from tasks.contracts.workspace import CONFIG, REPORT
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.judging.compare_runs import LABELS, compare_runs
from tasks.planning.next_run import plan_run
from tasks.runs import branches, experiments, releases
from tasks.runs.experiments import Experiment
from tasks.runs.metric_by_cost import costs_to_target
from tasks.runs.plan import begun_with
from tasks.runs.run import Run, read_run, read_runs
from tasks.runs.snapshot import Snapshot


class TryOutput(Record):
    """`millrace try`. A refused model is a normal result."""

    experiment: Experiment
    refused: bool = Field(description="true: a critical gate would refuse this model")
    run_url: str | None = Field(description="address of the flow run's page; null: all was done before")
    report: RunReport
    stages: tuple[StageLine, ...]
    comparisons: tuple[Comparison, ...] = Field(
        description="comparisons with the champion's run and, if another, the lineage's own run over the span"
    )
    page: str = Field(description="address of the run's report")
    compare: str = Field(description="command that compares it with the same runs")
    adopt: str = Field(description="command that makes its release, if the gates agree, and lets the lineage go on")


class ExperimentLine(Record):
    """One experiment in the list."""

    experiment: Experiment
    state: RunState | None = Field(description="state of its run; null: not begun")
    metrics: dict[str, float] = Field(description="metrics on its whole holdout; empty: not evaluated yet")
    by_queries: ByQueries | None = Field(description="the same for unseen and seen queries apart; null: not evaluated")
    target: CostPoint | None = Field(
        description="first evaluation within the training that is as good as the lineage's own run at its end, with "
        "seconds and dollars until then; null: not reached, or not known"
    )


class ExperimentsOutput(Record):
    """`millrace compare` without names, in the order of their first start."""

    experiments: tuple[ExperimentLine, ...] = Field(description="all experiments of the workspace")


def try_page(output: TryOutput) -> Parts:
    """Yield the settings, the stages, the verdicts, the champion's metrics, and the ways on."""
    tried = output.experiment
    yield f"experiment {tried.name}: run {tried.run_key} over {tried.span.name}, beside lineage {tried.lineage}"
    if tried.settings:
        rows = [[each.key, str(each.before), str(each.now)] for each in tried.settings]
        yield table("", ["setting", "~before", "~now"], rows)
    yield stages_table(output.stages)
    gates = output.report.verdicts
    short = [(gate_name(each), evaluate.answered(each), each.severity) for each in gates]
    tables = [table("", ("gate", "verdict", "severity"), short)] if gates else []
    for compared in output.comparisons:
        tables += [metrics_table(pair, compared.runs[0].name, "this") for pair in compared.pairs]
        tables += cost_tables(compared)
    if not output.comparisons and output.report.metrics is not None:
        of = output.report
        over = evaluate.over(of.holdout_rows or 0, of.items or 0, of.sampled_from, of.pairs or 0)
        tables += [queries.by_queries(of.by_queries, None, over)] if of.by_queries else []
        tables.append(evaluate.metrics(output.report.metrics, None, over))
    unsure = (*refusals(gates), *undecided(gates))
    yield Section("Evaluate", unsure, tables=tuple(tables))
    verdict = "A critical gate refuses it" if output.refused else "No critical gate refuses it"
    yield f"{verdict}. Nothing was released, and lineage {tried.lineage} is unchanged."
    yield f"page: {output.page}"
    yield f"to compare: {output.compare}"
    if not output.refused:
        yield "to adopt it, put these settings into the file of your runs; the next span is trained with them"
        yield f"to release from this span on with them at once: {output.adopt}"


@command(try_page, name="try")
def try_(
    options: RunOptions,
    span: Annotated[
        str | None,
        typer.Option(
            autocompletion=spans, help="For example 2022-Q4; default: the span that the lineage trained last."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the experiment; default: made of the span and the settings.")
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
) -> TryOutput:
    """Train a span with other settings beside the lineage, and judge it; nothing is released.

    Without a configuration file the settings are those of the lineage's own run over the span, but for --set.
    """
    store, given = options.store, options.config()
    known = experiments.find(store, name) if name is not None else None
    span = span or (known.span.name if known is not None else None) or _newest(store, given)
    on = branches.active(store, given.lineage)
    file, overrides = _settings(options, given, trying.own_run(store, on, span))
    config = RunOptions(store, file, overrides).config()
    own_name = f"{span},{_words(options)}"
    plan, experiment = trying.plan_experiment(store, config, span, name or own_name, given=name is not None)
    url = None
    if plan.to_do:
        trying.begin(store, experiment)
        note(f"experiment {experiment.name}: {' '.join(plan.sentences)}")
        settings = (str(file) if file else None, overrides)
        try:
            done = run_flow("backfill", verbose, store.uri, span, span, plan.stages, 1, plan.reason, False, *settings)
        except Conflict as error:
            raise Conflict(f"experiment {experiment.name} is carried out by another process: {error}") from error
        assert isinstance(done.value, Campaign)
        url = done.run_url
    return _tried(options, experiment, url)


def compare_page(output: Comparison | ExperimentsOutput, store: Store) -> Parts:
    """Yield the comparison, or the list of experiments."""
    if isinstance(output, Comparison):
        yield comparison_page(output, store.uri)
        return
    if not output.experiments:
        yield "no experiment yet; begin one: millrace try --set KEY=VALUE"
        return
    rows = [
        [
            each.experiment.name,
            each.experiment.span.name,
            each.experiment.run_key,
            _state(each.state),
            queries.sentence(each.by_queries),
            f"{each.target.seconds:,.0f}" if each.target else NONE,
            dollars(each.target.dollars) if each.target else NONE,
            ", ".join(f"{one.key}={one.now}" for one in each.experiment.settings),
        ]
        for each in output.experiments
    ]
    columns = ["experiment", "span", "run", "state", "~metric", ">s to target", ">$ to target", "~settings"]
    yield table("", columns, rows)
    yield "to compare: millrace compare RUN EXPERIMENT"


@command(compare_page)
def compare(
    store: Store,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Spans, releases, experiments or beginnings of run keys, two to eight."
        ),
    ] = None,
    page: Annotated[Path | None, typer.Option("--html", help="Also write one HTML file.")] = None,
) -> Comparison | ExperimentsOutput:
    """Compare runs: settings, metrics with intervals, slices, curves, queries; without names, list experiments."""
    snapshot = Snapshot(store)
    if not names:
        return ExperimentsOutput(experiments=tuple(_line(snapshot, each) for each in experiments.read_all(store)))
    if not 2 <= len(names) <= len(LABELS):
        raise ConfigError(f"compare: name two to {len(LABELS)} runs, or none to list the experiments")
    named = [_named(snapshot, name) for name in names]
    compared = compare_runs(store, [(shown, Run(snapshot, key)) for shown, key in named])
    if page is not None:
        write(page, html.render(comparison_page(compared, store.uri)))
    return compared


def _newest(store: Store, config: Config) -> str:
    return trying.newest_trained(store, config.lineage) or plan_run(store, config).span.name


def _settings(options: RunOptions, given: Config, own: str | None) -> tuple[PurePath | None, tuple[str, ...]]:
    """Return the settings of an experiment: the file, and the overrides over it."""
    if options.config_file is not None or own is None:
        return options.config_file, tuple(options.overrides)
    return options.store.local(CONFIG.key(run=own)), (f"lineage={given.lineage}", *options.overrides)


def _words(options: RunOptions) -> str:
    """Return a name made of the settings, as in `learning_rate=3e-5,epochs=2`."""
    words = [each.partition("=")[0].rpartition(".")[2] + "=" + each.partition("=")[2] for each in options.overrides]
    text = ",".join(words) or (options.config_file.stem if options.config_file else "same")
    return re.sub(r"[^\w.=,+-]+", "-", text).strip("-")[:50]


def _tried(options: RunOptions, experiment: Experiment, url: str | None) -> TryOutput:
    store = options.store
    snapshot = Snapshot(store, strict=True)
    run = read_run(snapshot, experiment.run_key)
    others = _others(snapshot, run, experiment)
    local = "://" not in store.uri
    settings = ["--config", f"{store.uri}/{CONFIG.key(run=run.run_key)}", "--set", f"lineage={experiment.lineage}"]
    first, newest = experiment.span.name, trying.newest_trained(store, experiment.lineage)
    last = max(first, newest or first, key=first_day)  # later ones descend from what it replaces
    adopt = ["millrace", "backfill", "--from", first, "--to", last]
    adopt += ["--reason", f"experiment {experiment.name}"]
    adopt += ["--workspace", store.uri, *settings] if local else options.arguments()
    keys = sorted((other.run_key for _, other in others), key=lambda key: key != experiment.beside) or ["RUN"]
    return TryOutput(
        experiment=experiment,
        refused=run.rejected,
        run_url=url,
        report=report_of(run, run.cached),
        stages=stage_lines(run, run.cached),
        comparisons=tuple(compare_runs(store, [other, (experiment.name, run)]) for other in others),
        page=f"{store.uri}/{REPORT.key(run=run.run_key)}",
        compare=shlex.join(["millrace", "compare", *keys, experiment.name, "--workspace", store.uri]),
        adopt=shlex.join(adopt),
    )


def _others(snapshot: Snapshot, run: Run, experiment: Experiment) -> list[tuple[str, Run]]:
    """Return the champion's run, as the evaluation measured it, and the lineage's own run over the span if another."""
    version = run.judgement.outcome.champion_version if run.judgement is not None else None
    release = releases.origin(snapshot.store, version) if version is not None else None
    found = {release.run_key: "champion"} if release is not None else {}
    if experiment.beside is not None:
        found.setdefault(experiment.beside, "own run")
    return [(name, read_run(snapshot, key)) for key, name in found.items()]


def _line(snapshot: Snapshot, experiment: Experiment) -> ExperimentLine:
    run = Run(snapshot, experiment.run_key)
    both = [Run(snapshot, experiment.beside), run] if experiment.beside is not None else []
    return ExperimentLine(
        experiment=experiment,
        state=run.state if run.plan is not None else None,
        metrics=run.metrics,
        by_queries=run.by_queries,
        target=costs_to_target(both)[1][-1].target if both else None,
    )


def _state(state: RunState | None) -> str:
    return "not begun" if state is None else "tried" if state is RunState.UNFINISHED else ended_as(state, None)


def _named(snapshot: Snapshot, name: str) -> tuple[str, str]:
    """Return a run in words and its key, by the name of an experiment, a span, a release, or the begin of its key.

    The key may be that of a side of a bake-off or of parity. A span means its released run, else its last one;
    experiments do not count.

    Raises:
        ConfigError: the name means no run, or several; names the possible ones.
        StoreError: a record is not readable.
    """
    store = snapshot.store
    if (experiment := experiments.find(store, name)) is not None:
        return name, experiment.run_key
    tried = {each.run_key for each in experiments.read_all(store)}
    runs = read_runs(snapshot, ())
    over = [run for run in runs if run.span == name and run.run_key not in tried]
    if over:
        return name, max(over, key=lambda run: (run.release is not None, run.began_at)).run_key
    if name.isdecimal() and int(name) in releases.numbers(store):
        made_by = releases.origin(store, releases.read(store, int(name)).model.version)
        if made_by is not None:
            return f"release {name}", made_by.run_key
    if (key := begun_with([*snapshot.runs], name, "run")) is not None:
        return name, key
    there = ", ".join(each.name for each in experiments.read_all(store)) or "none yet"
    raise ConfigError(
        f"compare: {store.uri} holds no span with a run, no release, no experiment and no run key {name!r}; the "
        f"experiments: {there}; the runs: millrace history"
    )

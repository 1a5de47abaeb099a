"""`millrace run` and `millrace refresh`: check that there is something to do, then run the flow in this process."""

import shlex
from collections.abc import Iterable
from typing import Annotated, Literal

import typer
from pydantic import Field

from configs.schema.config import Config
from flows.cli.dry_run import DryRunOutput, dry_run_page, planned
from flows.cli.flow_runs import run_flow
from flows.cli.report import RunReport, StageLine, report_of, stage_lines
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note
from flows.cli.terminal.options import RunOptions, spans, workspace_words
from flows.presentation import queries
from flows.presentation.model import Command, Parts, Section, Table, table
from flows.presentation.stages import evaluate
from flows.presentation.wording import NONE, count, seconds
from infra.store.base import Store
from infra.store.factory import require_fit
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.runs import Hold, Release, RunState
from tasks.contracts.stages import Stage
from tasks.foundation.errors import CodeError, ConfigError
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record
from tasks.monitoring.spending import require_budget
from tasks.planning.next_run import plan_run
from tasks.planning.start import next_start
from tasks.preflight.checks import check_plan, unread_settings
from tasks.running.early_loading import begin_loading
from tasks.runs import releases
from tasks.runs.adding_releases import waits
from tasks.runs.catalogues import plan_refresh
from tasks.runs.holds import why_waiting
from tasks.runs.plan import NothingToDo
from tasks.runs.results import Refusal, read_result
from tasks.runs.run import Run
from tasks.runs.snapshot import set_damaged_apart


class RunOutput(Record):
    """`millrace run`. A refused model is a normal result."""

    state: RunState | Literal["NothingToDo"]
    sentence: str = Field(
        description="reason of a rejection, a hold or of nothing to do, and the next step; else empty"
    )
    ui_url: str | None = Field(description="address of the Prefect server; null: none was needed")
    run_url: str | None = Field(description="address of the flow run's page, with its log")
    report: RunReport | None = Field(description="run as it is now; null: nothing to do")
    stages: tuple[StageLine, ...]


class RefreshOutput(Record):
    """`millrace refresh`."""

    state: Literal["Released", "Rejected", "Held", "NothingToDo"]
    sentence: str
    run_url: str | None = Field(description="address of the flow run's page; null: nothing to do")
    release: Release | None = Field(description="release that the refresh made; null: none")
    embedded: int | None = Field(description="items that got a new vector")


def run_page(output: RunOutput | DryRunOutput, with_settings: bool, options: RunOptions) -> Parts:
    """Yield the stages, the verdicts, how the run ended, and the commands to go on with."""
    if isinstance(output, DryRunOutput):
        yield from dry_run_page(output, with_settings)
        return
    if output.report is None:
        yield output.sentence
        return
    of = output.report
    yield f"run {of.run_key} over {of.span}, lineage {of.lineage}: {output.run_url}"
    yield stages_table(output.stages)
    yield from _verdict(of)
    if output.sentence:
        yield output.sentence
    yield from _next(of, workspace_words(options.store))


@command(run_page)
def run(
    options: RunOptions,
    span: Annotated[
        str | None,
        typer.Option(autocompletion=spans, help="For example 2022-Q4; default: the oldest not yet trained."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Only print the plan: rows, steps, time, what gates can see.", show_default=False)
    ] = False,
    with_settings: Annotated[
        bool, typer.Option("--settings", help="Print the settings of a dry-run too, as YAML.", show_default=False)
    ] = False,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
) -> RunOutput | DryRunOutput:
    """Run the pipeline over one span: train, evaluate, and release if the gates agree."""
    if with_settings and not dry_run:
        raise ConfigError("--settings prints the settings of a dry-run; add --dry-run")
    if dry_run:
        return planned(options, span)
    require_fit(options.store)
    store, served = options.store, releases.current(options.store)
    try:
        config = options.config()
        if not waits(store):  # else the flow decides the waiting release, which may change the plan
            plan = plan_run(store, config, span)
            begin_loading(store, plan)
            check_plan(store, plan)  # report errors before a server starts
            for each in unread_settings(store, plan):
                note(f"note: {each}")
            require_budget(store, plan)
        done = run_flow("pipeline", verbose, store.uri, span, *options.flow_settings())
        made = done.value
        assert isinstance(made, Run)
    except NothingToDo as error:
        sentence = " ".join(filter(None, (_decided(store, served), str(error))))
        return RunOutput(state="NothingToDo", sentence=sentence, ui_url=None, run_url=None, report=None, stages=())
    if made.unfinished:
        raise CodeError(f"run {made.run_key} ended well, but with neither a release nor a rejection")
    return RunOutput(
        state=made.state,
        sentence=_sentence(store, config, made),
        ui_url=done.ui_url,
        run_url=done.run_url,
        report=report_of(made, made.cached),
        stages=stage_lines(made, made.cached),
    )


def refresh_page(output: RefreshOutput) -> Parts:
    """Yield the result."""
    yield output.sentence


@command(refresh_page)
def refresh(
    options: RunOptions,
    verify: Annotated[
        bool,
        typer.Option(help="First read every file of the release; damaged ones are made again.", show_default=False),
    ] = False,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
) -> RefreshOutput:
    """Embed new and changed items with the released model, drop deleted ones, and release. Trains nothing."""
    store = options.store
    require_fit(store)
    if (hold := releases.hold_of(store)) is not None:
        return _held(hold, None)
    try:
        config, served = options.config(), releases.current(store)
        if verify and served is not None:
            for each in set_damaged_apart(store, served):
                note(f"{each}; it is in quarantine/ now, and is made again")
        if not waits(store):  # else the flow decides the waiting release, which may be all there is to do
            begin_loading(store, plan_refresh(store, config).plan)  # reports errors before a server starts
        done = run_flow("refresh", verbose, store.uri, str(options.config_file or ""), tuple(options.overrides))
    except NothingToDo as error:
        return RefreshOutput(state="NothingToDo", sentence=str(error), run_url=None, release=None, embedded=None)
    release = done.value
    if release is None:
        if decided := _decided(store, served):
            now = releases.current(store)
            return RefreshOutput(state="Released", sentence=decided, run_url=done.run_url, release=now, embedded=None)
        if (hold := releases.hold_of(store)) is not None:  # it came since
            return _held(hold, done.run_url)
        sentence = "nothing was done: another process refreshes this lineage, or has just done it"
        return RefreshOutput(state="NothingToDo", sentence=sentence, run_url=done.run_url, release=None, embedded=None)
    if isinstance(release, Refusal):
        sentence = f"{release.why} The current release stays."
        return RefreshOutput(state="Rejected", sentence=sentence, run_url=done.run_url, release=None, embedded=None)
    assert isinstance(release, Release)
    result = read_result(store, release.run_key, Stage.infer)
    assert result is not None
    assert isinstance(result.outcome, InferOutcome)
    embedded = result.outcome.vectors_made
    return RefreshOutput(
        state="Released",
        sentence=f"release {release.number} has {plural(release.vectors, 'vector')}, {count(embedded)} of them new, by "
        f"the model of release {release.refreshed}",
        run_url=done.run_url,
        release=release,
        embedded=embedded,
    )


def _held(hold: Hold, run_url: str | None) -> RefreshOutput:
    sentence = f"{hold.sentence} Nothing is refreshed until: millrace hold --off"
    return RefreshOutput(state="Held", sentence=sentence, run_url=run_url, release=None, embedded=None)


def _next(run: RunReport, words: list[str]) -> Parts:
    """Yield the commands that people type after a run. `words`: the options of the workspace."""
    if run.state == "Rejected":
        steps = {
            "millrace report": "the gates, the drift of the data, what to do",
            "millrace ingest ... --replace": f"a corrected export of {run.span}, if rows are wrong; then millrace run",
        }
    elif run.release is not None:
        steps = {
            'millrace search "a query"': "the nearest items of the release",
            "millrace report": "gates, stages, costs",
            "millrace serve": "searches beside the release before, and all pages, in a browser",
        }
    else:
        return
    commands = {" ".join([step, *map(shlex.quote, words)]): about for step, about in steps.items()}
    width = max(map(len, commands))
    yield Command("next:", tuple(f"{command:<{width}}  {about}" for command, about in commands.items()))


def _decided(store: Store, served: Release | None) -> str:
    """Return a sentence if a release that had waited for a decision has become current; else an empty one."""
    now = releases.current(store)
    if now is None or (served is not None and now.number == served.number):
        return ""
    return f"release {now.number} waited for a decision, and is current now."


def _sentence(store: Store, config: Config, run: Run) -> str:
    if run.rejected:
        return f"{run.message} {next_start(store, config)}"
    return why_waiting(store, run.release) if run.release is not None else ""


def stages_table(stages: Iterable[StageLine]) -> Table:
    """Return a row for each stage."""
    rows = (
        [s.stage.value, "cached" if s.cached else "done" if s.done else NONE, str(s.attempts), seconds(s.seconds)]
        for s in stages
    )
    return table("", ["stage", "", ">attempts", ">seconds"], rows)


def _verdict(run: RunReport) -> Parts:
    """Yield the metrics, the verdicts of the gates, and how the run ended."""
    if run.metrics is not None:
        over = evaluate.over(run.holdout_rows or 0, run.items or 0, run.sampled_from, run.pairs or 0)
        apart = [queries.by_queries(run.by_queries, run.champion_by_queries, over)] if run.by_queries else []
        tables = (*apart, evaluate.metrics(run.metrics, run.champion, over), *evaluate.gates(run.verdicts))
        yield Section("Evaluate", evaluate.by_human(run.overrides), tables=tables)
    if run.release is not None:
        yield f"{run.state} as {run.release}: model {run.model_version}, {plural(run.vectors or 0, 'vector')}"
    elif run.state == "Rejected":
        yield "Rejected: the champion stays, nothing was released"
    else:
        yield "Unfinished: run the span again, and it continues from here"

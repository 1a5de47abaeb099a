"""The commands that do work: ingest, run, skip, refresh, backfill, parity, warmup, import-checkpoint."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.terminal.options import HERE, AsJson, ConfigFile, Settings, Workspace, existing, tell
from flows.cli.terminal.run_options import RunOptions
from infra.store.factory import open_store
from tasks.contracts.spans import SpanKind
from tasks.data.sources import Format
from tasks.foundation.errors import ConfigError


class Control(enum.Enum):
    """What to do with a running backfill."""

    pause = "pause"
    resume = "resume"
    cancel = "cancel"


def ingest(
    form: Annotated[Format, typer.Option("--format", help="Format of the records.")],
    time_column: Annotated[str, typer.Option(help="Column with the time: ISO 8601, or seconds since 1970.")],
    span: Annotated[SpanKind, typer.Option(help="Length of a span.")],
    columns: Annotated[
        str, typer.Option("--map", help="Columns, as in query=q,item=title; of items, as in id=sku,text=title.")
    ],
    source: Annotated[Path | None, typer.Option(help="Rows: a file, or a folder of files; gzip is recognised.")] = None,
    items: Annotated[
        Path | None, typer.Option(help="In place of rows: items with their texts, and deleted ones.")
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(help="The source has all rows of its spans: a new version of changed ones.", show_default=False),
    ] = False,
    merge: Annotated[
        bool, typer.Option(help="The source has some rows of its spans: add them, new ones win.", show_default=False)
    ] = False,
    delimiter: Annotated[
        str | None, typer.Option(help="Of CSV: comma, semicolon, tab or pipe; default: found in the file.")
    ] = None,
    not_before: Annotated[
        str | None, typer.Option(help="First day of the data, as 2015-01-01. Earlier rows are errors.")
    ] = None,
    not_after: Annotated[
        str | None, typer.Option(help="Last day of the data; default: tomorrow. Later rows are errors.")
    ] = None,
    set_aside: Annotated[
        Path | None, typer.Option(help="A new file for rows that can't be used, which else are errors.")
    ] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Cut a source of rows, or an item feed, into spans and add them to the workspace.

    The same rows again change nothing. If the workspace has a span with other rows, say --replace or --merge.
    """
    import tasks.data.ingest
    import tasks.data.mapping
    from flows.cli.terminal.progress_bars import display
    from flows.cli.work import ingesting
    from tasks.data.canonical import ITEMS, ROWS

    path = source or items
    if path is None or (source and items):
        raise ConfigError(
            "name one input: --source FILE for rows of queries and items, or --items FILE for items alone"
        )
    layout = ITEMS if items else ROWS
    mapping = tasks.data.mapping.parse_map(columns, layout)
    options = ingesting.options(replace, merge, delimiter, not_before, not_after, set_aside)
    with display() as listener:
        summary = tasks.data.ingest.ingest(
            open_store(workspace), path, form, time_column, span, mapping, layout, listener.progress, options
        )
    tell(summary, ingesting.show, as_json)


def run(
    span: Annotated[str | None, typer.Option(help="For example 2022-Q4; default: the oldest not yet trained.")] = None,
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option(help="Only print settings and plan.", show_default=False)] = False,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
    as_json: AsJson = False,
) -> None:
    """Run the pipeline over one span: train, evaluate, and release if the gates agree."""
    from flows.cli.results import show
    from flows.cli.work import running

    store, overrides = open_store(workspace), settings or []
    if dry_run:
        tell(running.dry_run(store, span, config_file, overrides), show.dry_run, as_json)
    else:
        tell(running.run(store, span, config_file, overrides, verbose), show.run, as_json)


def skip(
    span: Annotated[str, typer.Argument(help="For example 2022-Q4; its newest version is skipped.")],
    reason: Annotated[str, typer.Option(help="Why; shown with the span later.")],
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Leave out a span that the lineage has not trained, as one with too few rows. The next run takes the one after."""
    from flows.cli.work import skipping

    options = RunOptions(existing(workspace), config_file, settings or ())
    tell(skipping.skip(options, span, reason), skipping.show, as_json)


def refresh(
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
    as_json: AsJson = False,
) -> None:
    """Give new and changed items vectors by the released model, drop deleted ones, and release that. Trains nothing."""
    from flows.cli.work import refreshing

    tell(refreshing.refresh(existing(workspace), config_file, settings or (), verbose), refreshing.show, as_json)


def gate(
    run_key: Annotated[str, typer.Option("--run", help="The run; millrace history names all runs.")],
    override: Annotated[str | None, typer.Option(help="Your name: let a refused run pass. Needs --reason.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why it may pass; shown wherever the release is.")] = None,
    explain: Annotated[bool, typer.Option(help="Show the arithmetic of each gate.", show_default=False)] = False,
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
    as_json: AsJson = False,
) -> None:
    """Judge a run again by other gates, without training; release it if it passes now, which needs workers."""
    from flows.cli.work import gating

    options = RunOptions(existing(workspace), config_file, settings or ())
    request = gating.GateRequest(run_key, override, reason, verbose)
    tell(gating.gate(options, request), gating.show_arithmetic if explain else gating.show_gate, as_json)


def backfill(
    first: Annotated[str, typer.Option("--from", help="First span, for example 2021-Q1.")],
    last: Annotated[str, typer.Option("--to", help="Last span; only this one is released.")],
    stages: Annotated[
        str, typer.Option(help="Stages to run.", show_default="all: train, evaluate, infer, release")
    ] = "train,evaluate,infer,release",
    parallel: Annotated[int, typer.Option(min=1, max=16, help="Spans that evaluate and infer at the same time.")] = 2,
    reason: Annotated[str, typer.Option(help="Why; shown with the backfill later.")] = "",
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option(help="Only print the plan.", show_default=False)] = False,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a range of spans up to date: train corrected spans again on a branch, and run what is missing.

    It prints its plan first. The same command continues a backfill that stopped.
    """
    from flows.cli.work import backfilling

    options = RunOptions(existing(workspace), config_file, settings or ())
    names = tuple(name.strip() for name in stages.split(",") if name.strip())
    request = backfilling.BackfillRequest(first, last, names, parallel, reason)
    if dry_run:
        tell(backfilling.dry_run(options, request), backfilling.show_plan, as_json)
    else:
        tell(backfilling.backfill(options, request, verbose), backfilling.show, as_json)


def backfills(workspace: Workspace = HERE, as_json: AsJson = False) -> None:
    """List all backfills with their progress and failures."""
    from flows.cli.work import backfilling

    tell(backfilling.backfills(existing(workspace)), backfilling.show_all, as_json)


def backfill_control(
    name: Annotated[str, typer.Argument(metavar="ID", help="ID of the backfill; its first characters are enough.")],
    action: Annotated[Control, typer.Argument(help="What to do.")],
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Pause, resume or cancel a running backfill."""
    from flows.cli.work import backfilling

    tell(backfilling.control(existing(workspace), name, action.value), backfilling.show_control, as_json)


def parity(
    span: Annotated[str, typer.Option(help="For example 2022-Q4; may be trained already.")],
    left: Annotated[str, typer.Option(help="Accelerator: cpu, cuda, xla or neuron.")] = "cpu",
    right: Annotated[str, typer.Option(help="Accelerator to compare with it.")] = "xla",
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
    as_json: AsJson = False,
) -> None:
    """Train one span on two accelerators from the same checkpoint, and compare the holdout metrics."""
    import flows.cli.work.parity

    options = RunOptions(open_store(workspace), config_file, settings or ())
    output = flows.cli.work.parity.parity(options, span, left, right, verbose)
    tell(output, flows.cli.work.parity.show, as_json)


def warmup(
    span: Annotated[str, typer.Option(help="Span whose rows are tried; may be trained already.")],
    compare_optlevel: Annotated[str, typer.Option(help="Compiler levels to compare, as in 1,2,3.")],
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Compile and try all computations at several optimisation levels, and compare them. Trains nothing."""
    from flows.cli.work import warming

    options = RunOptions(open_store(workspace), config_file, settings or ())
    tell(warming.compare(options, span, compare_optlevel), warming.show, as_json)


def import_checkpoint(
    file: Annotated[Path, typer.Argument(help="Made by torch.save(model.state_dict(), FILE), or safetensors.")],
    span: Annotated[str | None, typer.Option(help="Last span of the first run; default: the oldest.")] = None,
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Begin a lineage with weights from a file instead of a new model."""
    from flows.cli.work import importing

    options = RunOptions(open_store(workspace), config_file, settings or ())
    tell(importing.import_weights(options, file, span), importing.show, as_json)

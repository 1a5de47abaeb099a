"""The commands that do the pipeline's work: data in, spans through all stages, and what is done beside them."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import HERE, AsJson, Place, Settings, Workspace, existing, tell
from infra.store import open_store
from tasks.sources import Format
from tasks.spans import SpanKind


class Control(enum.Enum):
    """What a running backfill can be asked to do."""

    pause = "pause"
    resume = "resume"
    cancel = "cancel"


def ingest(
    source: Annotated[Path, typer.Option(help="A file, or a folder of files; gzip is recognised.")],
    form: Annotated[Format, typer.Option("--format", help="How the records are written.")],
    time_column: Annotated[str, typer.Option(help="The column that says when: ISO 8601, or seconds since 1970.")],
    span: Annotated[SpanKind, typer.Option(help="The length of a span.")],
    columns: Annotated[str, typer.Option("--map", help="query=COLUMN,item=COLUMN[,id=..][,item_id=..][,label=..]")],
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Cut a source into spans and put them into the workspace."""
    import tasks.ingest
    from flows.cli import show
    from flows.console import display

    mapping = tasks.ingest.parse_map(columns)
    with display() as listener:
        summary = tasks.ingest.ingest(
            open_store(workspace), source, form, time_column, span, mapping, progress=listener.progress
        )
    tell(summary, show.ingested, as_json)


def run(
    span: Annotated[str | None, typer.Option(help="For example 2022-Q4; default: the oldest not yet trained.")] = None,
    workspace: Workspace = HERE,
    config: Place = None,
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option(help="Print the resolved settings and the plan; do nothing.")] = False,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the pipeline over one span: train, evaluate, and release if the gates agree."""
    from flows.cli import running, show

    store, overrides = open_store(workspace), settings or []
    if dry_run:
        tell(running.dry_run(store, span, config, overrides), show.dry_run, as_json)
    else:
        tell(running.run(store, span, config, overrides, verbose), show.run, as_json)


def backfill(
    first: Annotated[str, typer.Option("--from", help="The first span, for example 2021-Q1.")],
    last: Annotated[str, typer.Option("--to", help="The last span; it alone is released.")],
    stages: Annotated[str, typer.Option(help="Out of these.")] = "train,evaluate,infer,release",
    parallel: Annotated[int, typer.Option(min=1, max=16, help="Spans evaluated and inferred at once.")] = 2,
    reason: Annotated[str, typer.Option(help="Why, for those who look at it later.")] = "",
    workspace: Workspace = HERE,
    config: Place = None,
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option(help="Print the plan; do nothing.")] = False,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train spans again on a branch, or fill in what is missing: plans first, and goes on where it stopped."""
    from flows.cli import backfilling

    asked = (existing(workspace), first, last, stages, parallel, reason, config, settings or [])
    if dry_run:
        tell(backfilling.dry_run(*asked), backfilling.show_plan, as_json)
    else:
        tell(backfilling.backfill(*asked, verbose), backfilling.show, as_json)


def backfills(workspace: Workspace = HERE, as_json: AsJson = False) -> None:
    """All backfills, how far they came, and what failed."""
    from flows.cli import backfilling

    tell(backfilling.backfills(existing(workspace)), backfilling.show_all, as_json)


def backfill_control(
    name: Annotated[str, typer.Argument(metavar="ID", help="Of the backfill; its beginning is enough.")],
    action: Annotated[Control, typer.Argument(help="What it is to do.")],
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Pause, resume or cancel a backfill that runs."""
    from flows.cli import backfilling

    tell(backfilling.control(existing(workspace), name, action.value), backfilling.show_control, as_json)


def parity(
    span: Annotated[str, typer.Option(help="For example 2022-Q4; it may have been trained already.")],
    left: Annotated[str, typer.Option(help="An accelerator: cpu, cuda, xla or neuron.")] = "cpu",
    right: Annotated[str, typer.Option(help="The one to hold against it.")] = "xla",
    workspace: Workspace = HERE,
    config: Place = None,
    settings: Settings = None,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train on a span with two accelerators, from one checkpoint, and compare their holdout metrics."""
    import flows.cli.parity

    output = flows.cli.parity.parity(open_store(workspace), span, left, right, config, settings or [], verbose)
    tell(output, flows.cli.parity.show, as_json)


def warmup(
    span: Annotated[str, typer.Option(help="The span whose rows are tried; it may have been trained already.")],
    compare_optlevel: Annotated[str, typer.Option(help="Levels of the compiler to set side by side, as 1,2,3.")],
    workspace: Workspace = HERE,
    config: Place = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Compile and try all shapes at several optimisation levels, and compare; nothing is trained."""
    from flows.cli import warming

    tell(warming.compare(open_store(workspace), span, compare_optlevel, config, settings or []), warming.show, as_json)


def import_checkpoint(
    file: Annotated[Path, typer.Argument(help="Of torch.save(model.state_dict(), FILE), or safetensors.")],
    span: Annotated[str | None, typer.Option(help="Where the first run will end; default: the oldest span.")] = None,
    workspace: Workspace = HERE,
    config: Place = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Begin a lineage with weights from elsewhere, instead of with a new model."""
    from flows.cli import importing

    tell(importing.import_weights(open_store(workspace), file, span, config, settings or []), importing.show, as_json)

"""The commands and their options. What they do lies elsewhere and is imported when a command runs, not before.

Results go to standard output, everything else to standard error; so `--json` leaves pure JSON on the former.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from infra.store import Store, open_store
from tasks.errors import POLICIES, CancelledError, ConfigError, FailureClass
from tasks.sources import Format
from tasks.spans import SpanKind

if TYPE_CHECKING:
    from tasks.records import Record

Workspace = Annotated[str, typer.Option(envvar="MILLRACE_WORKSPACE", help="Where spans, runs and releases lie.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts; its keys are in docs/cli.md.")]
HERE = "./workspace"


class Control(enum.Enum):
    """What a running backfill can be asked to do."""

    pause = "pause"
    resume = "resume"
    cancel = "cancel"


class _Interruptible(TyperGroup):
    """Lets Ctrl-C and SIGTERM end with the exit code of their class instead of typer's."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            how = str(error) or "Ctrl-C"
            raise CancelledError(f"stopped by {how}; what was finished is kept") from None


app = typer.Typer(
    cls=_Interruptible,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # `main` tells errors
    help="Keep an embedding model, and the vectors it produces, fresh: span by span, from data to release.",
)


@app.command()
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
    _print(summary, show.ingested, as_json)


@app.command()
def run(
    span: Annotated[str | None, typer.Option(help="For example 2022-Q4; default: the oldest not yet trained.")] = None,
    workspace: Workspace = HERE,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings over those of base.yaml.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="One setting, as train.epochs=2.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Print the resolved settings and the plan; do nothing.")] = False,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the pipeline over one span: train, evaluate, and release if the gates agree."""
    from flows.cli import running, show

    store, overrides = open_store(workspace), settings or []
    if dry_run:
        _print(running.dry_run(store, span, config, overrides), show.dry_run, as_json)
    else:
        _print(running.run(store, span, config, overrides, verbose), show.run, as_json)


@app.command()
def backfill(
    first: Annotated[str, typer.Option("--from", help="The first span, for example 2021-Q1.")],
    last: Annotated[str, typer.Option("--to", help="The last span; it alone is released.")],
    stages: Annotated[str, typer.Option(help="Out of these.")] = "train,evaluate,infer,release",
    parallel: Annotated[int, typer.Option(min=1, max=16, help="Spans evaluated and inferred at once.")] = 2,
    reason: Annotated[str, typer.Option(help="Why, for those who look at it later.")] = "",
    workspace: Workspace = HERE,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings over those of base.yaml.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="One setting, as train.epochs=2.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Print the plan; do nothing.")] = False,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train spans again on a branch, or fill in what is missing: plans first, and goes on where it stopped."""
    from flows.cli import backfilling

    asked = (_existing(workspace), first, last, stages, parallel, reason, config, settings or [])
    if dry_run:
        _print(backfilling.dry_run(*asked), backfilling.show_plan, as_json)
    else:
        _print(backfilling.backfill(*asked, verbose), backfilling.show, as_json)


@app.command()
def backfills(workspace: Workspace = HERE, as_json: AsJson = False) -> None:
    """All backfills, how far they came, and what failed."""
    from flows.cli import backfilling

    _print(backfilling.backfills(_existing(workspace)), backfilling.show_all, as_json)


@app.command()
def backfill_control(
    name: Annotated[str, typer.Argument(metavar="ID", help="Of the backfill; its beginning is enough.")],
    action: Annotated[Control, typer.Argument(help="What it is to do.")],
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Pause, resume or cancel a backfill that runs."""
    from flows.cli import backfilling

    _print(backfilling.control(_existing(workspace), name, action.value), backfilling.show_control, as_json)


@app.command()
def parity(
    span: Annotated[str, typer.Option(help="For example 2022-Q4; it may have been trained already.")],
    left: Annotated[str, typer.Option(help="An accelerator: cpu, cuda, xla or neuron.")] = "cpu",
    right: Annotated[str, typer.Option(help="The one to hold against it.")] = "xla",
    workspace: Workspace = HERE,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings over those of base.yaml.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="One setting, as train.epochs=2.")] = None,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train on a span with two accelerators, from one checkpoint, and compare their holdout metrics."""
    import flows.cli.parity

    output = flows.cli.parity.parity(open_store(workspace), span, left, right, config, settings or [], verbose)
    _print(output, flows.cli.parity.show, as_json)


@app.command()
def warmup(
    span: Annotated[str, typer.Option(help="The span whose rows are tried; it may have been trained already.")],
    compare_optlevel: Annotated[str, typer.Option(help="Levels of the compiler to set side by side, as 1,2,3.")],
    workspace: Workspace = HERE,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings over those of base.yaml.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="One setting, as train.epochs=2.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compile and try all shapes at several optimisation levels, and compare; nothing is trained."""
    from flows.cli import warming

    _print(
        warming.compare(open_store(workspace), span, compare_optlevel, config, settings or []), warming.show, as_json
    )


@app.command()
def import_checkpoint(
    file: Annotated[Path, typer.Argument(help="Of torch.save(model.state_dict(), FILE), or safetensors.")],
    span: Annotated[str | None, typer.Option(help="Where the first run will end; default: the oldest span.")] = None,
    workspace: Workspace = HERE,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings over those of base.yaml.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="One setting, as train.epochs=2.")] = None,
    as_json: AsJson = False,
) -> None:
    """Begin a lineage with weights from elsewhere, instead of with a new model."""
    from flows.cli import importing

    _print(importing.import_weights(open_store(workspace), file, span, config, settings or []), importing.show, as_json)


@app.command()
def status(workspace: Workspace = HERE, as_json: AsJson = False) -> None:
    """Spans, lineages, the current release, and what the attempts cost and yielded."""
    from flows.cli import outputs, show

    _print(outputs.status(_existing(workspace)), show.status, as_json)


@app.command()
def releases(workspace: Workspace = HERE, as_json: AsJson = False) -> None:
    """All releases, and which one is current."""
    from flows.cli import outputs, show

    _print(outputs.releases(_existing(workspace)), show.releases, as_json)


@app.command()
def rollback(
    to: Annotated[int | None, typer.Option(help="The release to go to; default: the one before the current.")] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Make an earlier release current again, model and vectors at once."""
    from flows.cli import outputs, show

    _print(outputs.rollback(_existing(workspace), to), show.rolled_back, as_json)


@app.command()
def report(
    span: Annotated[str | None, typer.Option(help="The last run over this span.")] = None,
    run_key: Annotated[str | None, typer.Option("--run", help="This run; default: the last one.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write it as one HTML file instead of printing it.")] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """One run in full: stages, checks, curve, metrics, slices, verdicts, attempts."""
    from flows.cli import outputs, show

    if span is not None and run_key is not None:
        raise ConfigError("report: give --span or --run, not both")
    store = _existing(workspace)
    key = run_key or outputs.last_run(store, span)
    if html is not None:
        from flows.reports.run_page import run_html

        _write(html, run_html(store, key))
    if html is None or as_json:
        _print(outputs.report(store, key), show.report, as_json)


@app.command()
def history(
    html: Annotated[Path | None, typer.Option(help="Write it as one HTML file instead of printing it.")] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """All runs: what became of them, how fresh and how good the released model is, and what it took."""
    from flows.cli import reporting

    store = _existing(workspace)
    if html is not None:
        from flows.reports.history_page import history_html

        _write(html, history_html(store))
    if html is None or as_json:
        _print(reporting.history(store), reporting.show, as_json)


@app.command()
def metrics(
    out: Annotated[Path | None, typer.Option(help="Write them into this file instead of printing them.")] = None,
    workspace: Workspace = HERE,
) -> None:
    """The workspace's numbers for Prometheus: freshness, quality, success, goodput, cost, failures."""
    from tasks.exposition import exposition

    text = exposition(_existing(workspace))
    if out is None:
        typer.echo(text, nl=False)
    else:
        _write(out, text)


@app.command()
def serve(
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0: any free one.")] = 4280,
    workspace: Workspace = HERE,
) -> None:
    """Show the history and the reports of a workspace in a browser on this machine; changes nothing."""
    from flows.cli import serving

    serving.serve(_existing(workspace), port)


@app.command()
def hosts(
    forgive: Annotated[str | None, typer.Option(help="Forget all about this one: it was repaired.")] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Machines that get no work for a while, or are suspected, and why."""
    import flows.cli.hosts

    _print(flows.cli.hosts.hosts(_existing(workspace), forgive), flows.cli.hosts.show, as_json)


@app.command()
def freshness(
    workspace: Workspace = HERE,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings over those of base.yaml.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, as freshness.target_hours=48.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How old the released vectors' data is, how far each span has come, and which are missing, missed or late."""
    import flows.cli.freshness

    report = flows.cli.freshness.freshness(_existing(workspace), config, settings or [])
    _print(report, flows.cli.freshness.show, as_json)


@app.command()
def doctor(
    workspace: Workspace = HERE,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings over those of base.yaml.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="One setting, as compute=batch.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at all that a run needs, and say how to mend what is not as it must be."""
    import flows.cli.doctor
    from tasks.doctor import examine

    report = examine(workspace, config, settings or [])
    _print(report, flows.cli.doctor.show, as_json)
    if report.failed:
        raise typer.Exit(POLICIES[FailureClass.CONFIG].exit_code)


@app.command()
def reap(
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings over those of base.yaml.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="One setting, as batch.cpu_queue=mine.")] = None,
    grace_minutes: Annotated[float, typer.Option(help="Unattended for longer: ended.")] = 15.0,
    dry_run: Annotated[bool, typer.Option(help="Say what would be ended; end nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """End jobs on AWS Batch whose flow run is over, or was killed and not run again."""
    from flows.cli import reaping

    _print(reaping.reap(config, settings or [], grace_minutes, dry_run), reaping.show, as_json)


@app.command()
def deploy(
    workspace: Workspace = HERE,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings over those of base.yaml.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="One setting, as train.epochs=2.")] = None,
    alert_url: Annotated[
        str | None,
        typer.Option(envvar="MILLRACE_ALERT_URL", help="Is told when a run fails or is late, or vectors are stale."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put the pipeline on its schedule, with all that belongs to it, or replace what is there."""
    from flows.cli import deploying

    _print(deploying.deploy(_existing(workspace), config, settings or [], alert_url), deploying.show, as_json)


@app.command()
def up(as_json: AsJson = False) -> None:
    """Start the Prefect server in the background, or find the one that runs."""
    from flows.cli import show
    from infra import prefect_server

    server = prefect_server.up(prefect_server.state_home(), say=lambda line: typer.echo(line, err=True))
    _print(server, show.server, as_json)


@app.command()
def down() -> None:
    """Stop the Prefect server that `up` or `run` started from this directory."""
    from infra import prefect_server

    home = prefect_server.state_home()
    typer.echo("Prefect server stopped" if prefect_server.down(home) else f"no Prefect server of {home} is running")


def _write(path: Path, data: bytes) -> None:
    from flows.cli import reporting

    reporting.write_file(path, data)
    typer.echo(f"wrote {path}", err=True)


def _existing(workspace: str) -> Store:
    """The store of a workspace that holds something; a typo must not look like an empty one."""
    store = open_store(workspace)
    if not store.list("spans"):
        raise ConfigError(
            f"{store.uri} holds no span, so it is no workspace yet; check --workspace, or begin with: millrace ingest"
        )
    return store


def _print(output: Record, show: Callable[[Any], None], as_json: bool) -> None:
    if as_json:
        typer.echo(output.to_json(), nl=False)
    else:
        show(output)

"""The commands about results: releases, searches and reports, from `status` to `metrics`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.terminal.options import HERE, AsJson, ConfigFile, Settings, Workspace, existing, tell
from flows.cli.terminal.run_options import RunOptions
from tasks.foundation.errors import ConfigError


def status(workspace: Workspace = HERE, as_json: AsJson = False) -> None:
    """Show spans, lineages, the current release, and what the attempts cost."""
    from flows.cli.results import show
    from flows.cli.results.status import workspace_status

    tell(workspace_status(existing(workspace)), show.status, as_json)


def releases(workspace: Workspace = HERE, as_json: AsJson = False) -> None:
    """List all releases and mark the current one."""
    from flows.cli.results import outputs, show

    tell(outputs.releases(existing(workspace)), show.releases, as_json)


def rollback(
    to: Annotated[int | None, typer.Option(help="Release to go to; default: the newest of the model before.")] = None,
    verify: Annotated[bool, typer.Option(help="First read every file of that release.", show_default=False)] = False,
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Make an earlier release current again; model, vectors and the targets of publish.targets change together."""
    from flows.cli.results import rolling_back, show

    options = RunOptions(existing(workspace), config_file, settings or ())
    tell(rolling_back.rollback(options, to, verify), show.rolled_back, as_json)


def hold(
    reason: Annotated[str | None, typer.Option(help="Why; shown wherever the release is.")] = None,
    off: Annotated[bool, typer.Option("--off", help="Lift the hold.", show_default=False)] = False,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Keep the current release: runs end as Held and refreshes do nothing, until --off."""
    from flows.cli.results import holding

    tell(holding.hold(existing(workspace), reason, off), holding.show, as_json)


def publish(
    release: Annotated[int | None, typer.Option(help="Number of the release; default: the current one.")] = None,
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Bring a release to the search services of publish.targets; what they have already is only checked."""
    from flows.cli.results import publishing

    options = RunOptions(existing(workspace), config_file, settings or ())
    tell(publishing.publish(options, release), publishing.show, as_json)


def search(
    text: Annotated[str, typer.Argument(help="What to look for, as a user would write it.")],
    release: Annotated[int | None, typer.Option(help="Number of the release; default: the current one.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many items.")] = 10,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Find the items of a release that are nearest to a text, among all of them."""
    from flows.cli.results import searching

    tell(searching.search(existing(workspace), text, release, k), searching.show, as_json)


def diff(
    before: Annotated[
        int | None, typer.Argument(help="Number of the earlier release; default: the one before.")
    ] = None,
    after: Annotated[int | None, typer.Argument(help="Number of the later one; default: the current one.")] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Compare two releases: items, vectors, and the queries that won and lost most."""
    from flows.cli.results import comparing

    tell(comparing.compare(existing(workspace), before, after), comparing.show, as_json)


def report(
    span: Annotated[str | None, typer.Option(help="Show the last run over this span.")] = None,
    run_key: Annotated[str | None, typer.Option("--run", help="Show this run; default: the last one.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one HTML file instead of printing.")] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Show one run in full: each stage, costs, failures, settings, files."""
    from flows.cli.results import outputs, show

    if span is not None and run_key is not None:
        raise ConfigError("report: give --span or --run, not both")
    store = existing(workspace)
    key = run_key or outputs.last_run(store, span)
    if html is not None:
        from flows.cli.terminal.files import write
        from flows.presentation.run.report import run_html

        write(html, run_html(store, key))
    if as_json:
        typer.echo(outputs.report(store, key).to_json(), nl=False)
    elif html is None:
        show.report(store, key)


def history(
    html: Annotated[Path | None, typer.Option(help="Write one HTML file instead of printing.")] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Show all runs with results, times and costs, and how fresh the released data is."""
    from flows.cli.results import history

    store = existing(workspace)
    if html is not None:
        from flows.cli.terminal.files import write
        from flows.presentation.history.page import history_html

        write(html, history_html(store))
    if html is None or as_json:
        tell(history.history(store), history.show, as_json)


def metrics(
    out: Annotated[Path | None, typer.Option(help="Write this file instead of printing.")] = None,
    workspace: Workspace = HERE,
) -> None:
    """Print metrics for Prometheus: freshness, quality, success, goodput, cost, failures."""
    from tasks.monitoring.prometheus import metrics_text

    text = metrics_text(existing(workspace))
    if out is None:
        typer.echo(text, nl=False)
    else:
        from flows.cli.terminal.files import write

        write(out, text)

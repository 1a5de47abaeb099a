"""The commands that tell what came of the work, and which release serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import HERE, AsJson, Workspace, existing, tell, write
from tasks.errors import ConfigError


def status(workspace: Workspace = HERE, as_json: AsJson = False) -> None:
    """Spans, lineages, the current release, and what the attempts cost and yielded."""
    from flows.cli import outputs, show

    tell(outputs.status(existing(workspace)), show.status, as_json)


def releases(workspace: Workspace = HERE, as_json: AsJson = False) -> None:
    """All releases, and which one is current."""
    from flows.cli import outputs, show

    tell(outputs.releases(existing(workspace)), show.releases, as_json)


def rollback(
    to: Annotated[int | None, typer.Option(help="The release to go to; default: the one before the current.")] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Make an earlier release current again, model and vectors at once."""
    from flows.cli import outputs, show

    tell(outputs.rollback(existing(workspace), to), show.rolled_back, as_json)


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
    store = existing(workspace)
    key = run_key or outputs.last_run(store, span)
    if html is not None:
        from flows.reports.run_page import run_html

        write(html, run_html(store, key))
    if html is None or as_json:
        tell(outputs.report(store, key), show.report, as_json)


def history(
    html: Annotated[Path | None, typer.Option(help="Write it as one HTML file instead of printing it.")] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """All runs: what became of them, how fresh and how good the released model is, and what it took."""
    from flows.cli import reporting

    store = existing(workspace)
    if html is not None:
        from flows.reports.history_page import history_html

        write(html, history_html(store))
    if html is None or as_json:
        tell(reporting.history(store), reporting.show, as_json)


def metrics(
    out: Annotated[Path | None, typer.Option(help="Write them into this file instead of printing them.")] = None,
    workspace: Workspace = HERE,
) -> None:
    """The workspace's numbers for Prometheus: freshness, quality, success, goodput, cost, failures."""
    from tasks.exposition import exposition

    text = exposition(existing(workspace))
    if out is None:
        typer.echo(text, nl=False)
    else:
        write(out, text)


def serve(
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0: any free one.")] = 4280,
    workspace: Workspace = HERE,
) -> None:
    """Show the history and the reports of a workspace in a browser on this machine; changes nothing."""
    from flows.cli import serving

    serving.serve(existing(workspace), port)

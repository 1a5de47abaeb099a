"""The commands for those who keep it running: machines, schedules, what is late, what is wrong."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.options import HERE, AsJson, Place, Settings, Workspace, existing, tell
from tasks.errors import POLICIES, FailureClass


def freshness(
    workspace: Workspace = HERE,
    config: Place = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """How old the released vectors' data is, how far each span has come, and which are missing, missed or late."""
    import flows.cli.freshness

    report = flows.cli.freshness.freshness(existing(workspace), config, settings or [])
    tell(report, flows.cli.freshness.show, as_json)


def doctor(
    workspace: Workspace = HERE,
    config: Place = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Look at all that a run needs, and say how to mend what is not as it must be."""
    import flows.cli.doctor
    from tasks.doctor import examine

    report = examine(workspace, config, settings or [])
    tell(report, flows.cli.doctor.show, as_json)
    if report.failed:
        raise typer.Exit(POLICIES[FailureClass.CONFIG].exit_code)


def hosts(
    forgive: Annotated[str | None, typer.Option(help="Forget all about this one: it was repaired.")] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Machines that get no work for a while, or are suspected, and why."""
    import flows.cli.hosts

    tell(flows.cli.hosts.hosts(existing(workspace), forgive), flows.cli.hosts.show, as_json)


def reap(
    config: Place = None,
    settings: Settings = None,
    grace_minutes: Annotated[float, typer.Option(help="Unattended for longer: ended.")] = 15.0,
    dry_run: Annotated[bool, typer.Option(help="Say what would be ended; end nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """End jobs on AWS Batch whose flow run is over, or was killed and not run again."""
    from flows.cli import reaping

    tell(reaping.reap(config, settings or [], grace_minutes, dry_run), reaping.show, as_json)


def deploy(
    workspace: Workspace = HERE,
    config: Place = None,
    settings: Settings = None,
    alert_url: Annotated[
        str | None,
        typer.Option(envvar="MILLRACE_ALERT_URL", help="Is told when a run fails or is late, or vectors are stale."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put the pipeline on its schedule, with all that belongs to it, or replace what is there."""
    from flows.cli import deploying

    tell(deploying.deploy(existing(workspace), config, settings or [], alert_url), deploying.show, as_json)


def up(as_json: AsJson = False) -> None:
    """Start the Prefect server in the background, or find the one that runs."""
    from flows.cli import show
    from infra import prefect_server

    server = prefect_server.up(prefect_server.state_home(), say=lambda line: typer.echo(line, err=True))
    tell(server, show.server, as_json)


def down() -> None:
    """Stop the Prefect server that `up` or `run` started from this directory."""
    from infra import prefect_server

    home = prefect_server.state_home()
    typer.echo("Prefect server stopped" if prefect_server.down(home) else f"no Prefect server of {home} is running")

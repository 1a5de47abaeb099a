"""The commands that operate Millrace: freshness, ledger, doctor, smoke, hosts, reap, prune, deploy, up, down."""

from typing import Annotated

import typer

from flows.cli.terminal.options import HERE, AsJson, ConfigFile, Settings, Workspace, existing, tell
from flows.cli.terminal.run_options import RunOptions
from infra.store.factory import open_store
from tasks.foundation.errors import POLICIES, FailureClass


def freshness(
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show how old the released data is, how far each span has come, and what is missing, missed or late."""
    import flows.cli.operation.freshness

    report = flows.cli.operation.freshness.freshness(RunOptions(existing(workspace), config_file, settings or ()))
    tell(report, flows.cli.operation.freshness.show, as_json)


def ledger(
    run_key: Annotated[str | None, typer.Option("--run", help="Show this run, with each of its attempts.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Leave out runs that began before this day, as in 2026-11-20, or time; in UTC.")
    ] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Show success rates, goodput, mean time to recover and cost, by week and by run, from the records of attempts."""
    import functools

    import flows.cli.operation.ledger

    report = flows.cli.operation.ledger.ledger(existing(workspace), run_key, since)
    tell(report, functools.partial(flows.cli.operation.ledger.show, one_run=run_key is not None), as_json)


def doctor(
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Check everything that a run needs, and say how to fix what is wrong."""
    import flows.cli.operation.doctor
    from tasks.upkeep.examine import examine

    report = examine(workspace, config_file, settings or [])
    tell(report, flows.cli.operation.doctor.show, as_json)
    if report.failed:
        raise typer.Exit(POLICIES[FailureClass.CONFIG].exit_code)


def smoke(
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Try devices, network, compiler, one step and a checkpoint, on one machine and then on all of the settings."""
    from flows.cli.operation import smoking

    report = smoking.smoke(RunOptions(open_store(workspace), config_file, settings or ()))
    tell(report, smoking.show, as_json)
    if report.failure is not None:
        raise typer.Exit(POLICIES[report.failure].exit_code)


def hosts(
    forgive: Annotated[str | None, typer.Option(help="Forget the record of this host, after a repair.")] = None,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """List hosts that are excluded or suspected, and why."""
    import flows.cli.operation.hosts

    tell(flows.cli.operation.hosts.hosts(existing(workspace), forgive), flows.cli.operation.hosts.show, as_json)


def reap(
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    grace_minutes: Annotated[float, typer.Option(help="End a job that no process has waited for this long.")] = 15.0,
    dry_run: Annotated[bool, typer.Option(help="Only list what would be ended.", show_default=False)] = False,
    as_json: AsJson = False,
) -> None:
    """End jobs on AWS Batch whose flow run has ended or was lost."""
    from flows.cli.operation import reaping

    tell(reaping.reap(workspace, config_file, settings or [], grace_minutes, dry_run), reaping.show, as_json)


def deploy(
    workspace: Workspace = HERE,
    config_file: ConfigFile = None,
    settings: Settings = None,
    alert_url: Annotated[
        str | None,
        typer.Option(
            envvar="MILLRACE_ALERT_URL", help="Webhook to call when a run fails or is late, or data is stale."
        ),
    ] = None,
    alert_block: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE/NAME", help="Notification block of the server to alert by, as slack-webhook/team."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put the pipeline on its schedule: deployments, work pool, queue, alerts. Replaces an earlier deployment."""
    from flows.cli.operation import deploying

    options = RunOptions(existing(workspace), config_file, settings or ())
    tell(deploying.deploy(options, alert_url, alert_block or ()), deploying.show, as_json)


def prune(
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest releases to keep.")] = 5,
    dry_run: Annotated[bool, typer.Option(help="Only list what would be deleted.", show_default=False)] = False,
    workspace: Workspace = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete models, vectors, catalogues and checkpoints that nothing needs any more. Records stay."""
    from flows.cli.operation import pruning

    tell(pruning.prune(existing(workspace), keep, dry_run), pruning.show, as_json)


def up(as_json: AsJson = False) -> None:
    """Start the Prefect server in the background, or find the running one."""
    from flows.cli.results import show
    from infra import prefect_server

    server = prefect_server.up(prefect_server.state_home(), say=lambda line: typer.echo(line, err=True))
    tell(server, show.server, as_json)


def down() -> None:
    """Stop the Prefect server that `up` or `run` started from this directory, and the demo's pages."""
    from flows.cli.serving import background_pages
    from infra import prefect_server

    home = prefect_server.state_home()
    if background_pages.down(home):
        typer.echo("pages stopped")
    typer.echo("Prefect server stopped" if prefect_server.down(home) else f"no Prefect server of {home} is running")

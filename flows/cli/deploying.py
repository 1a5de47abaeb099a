"""`millrace deploy`: send the deployments of prefect.yaml to the server, with work pool, queue and alerts.

Safe to repeat: deployments on the server are replaced, never doubled.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import Field

from configs.schema.config import Config
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note, say, show_table
from flows.cli.terminal.options import RunOptions
from infra import prefect_server
from infra.prefect_server import Server
from infra.store.base import Store
from infra.work_pool import worker_command
from tasks.foundation.errors import CodeError, ConfigError, StageError
from tasks.foundation.records import Record
from tasks.monitoring.deadlines import check_schedule, next_fire
from tasks.planning.next_run import due_span

HOME = Path(__file__).resolve().parents[2]
FILE = HOME / "prefect.yaml"
SECONDS = 180.0  # limit of `prefect deploy`; it takes about 15 s on an idle machine
PULL = "prefect.deployments.steps.set_working_directory"


class DeploymentLine(Record):
    """One deployment on the server."""

    name: str = Field(description="name of the deployment")
    cron: str | None = Field(description="cron of the schedule; null: started by hand only")
    timezone: str | None
    active: bool = Field(description="false: its schedule was paused in the UI and stays so")
    next_at: str | None = Field(description="next start, in its time zone; null: by hand only, or paused")
    next_span: str | None = Field(description="span that the next run of pipeline/scheduled will take")
    url: str


class DeployOutput(Record):
    """`millrace deploy`."""

    ui_url: str
    workspace: str
    config_file: str | None
    work_pool: str
    queue: str = Field(description="concurrency limit in which the lineage's runs wait for each other")
    deployments: tuple[DeploymentLine, ...]
    left_over: tuple[str, ...] = Field(description="deployments on the server that prefect.yaml no longer has")
    alerts: tuple[str, ...] = Field(
        description="automations that send alerts; empty without --alert-url and --alert-block"
    )
    worker: str = Field(description="command that starts the worker for scheduled flow runs")


def show_deployments(output: DeployOutput) -> None:
    """Print the output for people."""
    rows = []
    for line in output.deployments:
        remark = f"takes {line.next_span}" if line.next_span else "" if line.active else "paused in the UI"
        then = (line.next_at or "")[:16].replace("T", " ")
        rows.append((line.name, line.cron or "by hand", line.timezone or "", then, remark))
    show_table(("deployment", "cron", "time zone", "next run", "note"), rows)
    for name in output.left_over:
        say(f"left over, and may still run: {name}; end it: prefect deployment delete {name}")
    say(*(f"alert: {name}" for name in output.alerts))
    say(f"Prefect UI: {output.ui_url}/deployments", f"start a worker: {output.worker}")


@command(show_deployments)
def deploy(
    options: RunOptions,
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
) -> DeployOutput:
    """Put the pipeline on its schedule: deployments, work pool, queue, alerts. Replaces an earlier deployment."""
    store, config = options.store, options.config()
    if not FILE.is_file():
        raise ConfigError(f"{FILE} is missing: deploy from the repository or the control image")
    if alert_url is not None and not alert_url.startswith(("http://", "https://")):
        raise ConfigError("--alert-url must begin with http:// or https://")  # a secret, so it is not shown
    server = prefect_server.up(prefect_server.state_home(), note)
    os.environ.update(prefect_server.client_environment(server))
    check_schedule(config.schedule.cron, config.schedule.timezone)

    from infra import alerts

    blocks = [alerts.block_of(name) for name in alert_block or ()]
    config_file = str(options.config_file.resolve()) if options.config_file else None  # workers run elsewhere
    tree = _rendered(options.overrides)
    pool = str(tree["deployments"][0]["work_pool"]["name"])
    queue = _make_pool_and_queues(config, pool)
    note("deploying; takes about 15 seconds")
    _send(tree, _environment(config, store, config_file))
    if alert_url is not None or blocks:
        alerts.install(alert_url, blocks, server.ui_url, pool)
    names = [f"{each['entrypoint'].rpartition(':')[2]}/{each['name']}" for each in tree["deployments"]]
    lines, left_over = _read_back(names, server, store, config)
    return DeployOutput(
        ui_url=server.ui_url,
        workspace=store.uri,
        config_file=config_file,
        work_pool=pool,
        queue=queue,
        deployments=lines,
        left_over=left_over,
        alerts=tuple(alerts.list_installed(pool)),
        worker=worker_command(server, pool),
    )


def _rendered(overrides: Sequence[str]) -> dict[str, Any]:
    """Return prefect.yaml with the list of overrides and this directory, which Prefect's templates can't hold."""
    tree = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    tree["pull"] = [{PULL: {"directory": str(HOME)}}]
    for deployment in tree["deployments"]:
        deployment["parameters"]["overrides"] = list(overrides)
    return tree


def _environment(config: Config, store: Store, config_file: str | None) -> dict[str, str]:
    """Return the environment with the variables that prefect.yaml names."""
    return {
        **os.environ,
        "MILLRACE_HOME": str(HOME),
        "MILLRACE_WORKSPACE": store.uri,
        "MILLRACE_CONFIG": config_file or "",
        "MILLRACE_CRON": config.schedule.cron,
        "MILLRACE_ZONE": config.schedule.timezone,
    }


def _make_pool_and_queues(config: Config, pool: str) -> str:
    """Make the work pool, its queue of janitors and the lineage's queue; return the name of the last."""
    from prefect.client.orchestration import get_client

    from flows.running import janitors
    from flows.running.lineage_queue import queue_name
    from infra import work_pool

    queue = queue_name(config.lineage)
    with get_client(sync_client=True) as client:
        work_pool.make_pool(client, pool)
        work_pool.limit_janitors(client, pool, janitors.QUEUE)
        client.upsert_global_concurrency_limit_by_name(queue, limit=1)
    return queue


def _send(tree: dict[str, Any], environment: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
        try:
            done = subprocess.run(
                command,
                cwd=HOME,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS,
                encoding="utf-8",
            )
        except subprocess.TimeoutExpired as error:
            raise CodeError(f"`prefect deploy` did not end within {SECONDS:.0f} s; is the server busy?") from error
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-20:])
        raise CodeError(f"`prefect deploy` ended with status {done.returncode}; its output ends:\n{tail}")


def _read_back(
    names: Sequence[str], server: Server, store: Store, config: Config
) -> tuple[tuple[DeploymentLine, ...], tuple[str, ...]]:
    """Return the deployments on the server, and the names of other deployments of the same flows."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    ours = FlowFilter(name=FlowFilterName(any_=sorted({name.partition("/")[0] for name in names})))
    with get_client(sync_client=True) as client:
        flows = {flow.id: flow.name for flow in client.read_flows(flow_filter=ours)}
        deployments = client.read_deployments(flow_filter=ours)
    by_name = {f"{flows[deployment.flow_id]}/{deployment.name}": deployment for deployment in deployments}
    lines = tuple(_line(name, by_name[name], server, store, config) for name in names)
    return lines, tuple(sorted(set(by_name) - set(names)))


def _line(name: str, deployment: Any, server: Server, store: Store, config: Config) -> DeploymentLine:
    schedule = deployment.schedules[0] if deployment.schedules else None
    active = not deployment.paused and (schedule is None or schedule.active)
    cron, zone = (schedule.schedule.cron, schedule.schedule.timezone) if schedule else (None, None)
    then = next_fire(cron, zone) if active and cron and zone else None
    span = None
    if then is not None and name == "pipeline/scheduled":
        with contextlib.suppress(StageError):  # the run itself will fail with it
            span = due_span(store, then, config.schedule.timezone)
    return DeploymentLine(
        name=name,
        cron=cron,
        timezone=zone,
        active=active,
        next_at=then.isoformat() if then else None,
        next_span=span,
        url=f"{server.ui_url}/deployments/deployment/{deployment.id}",
    )

"""`millrace deploy`: send the deployments of prefect.yaml to the server, with work pool, queue and alerts.

Safe to repeat: deployments on the server are replaced, never doubled.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import Field

from configs.schema.config import Config
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note
from flows.cli.terminal.options import RunOptions
from flows.presentation.model import Parts, table
from infra import deployments, prefect_server
from infra.deployments import Deployed, Source
from infra.prefect_server import Server
from infra.store.base import Store
from infra.work_pool import worker_command
from tasks.contracts.stages import Stage, compute_of
from tasks.foundation.errors import CodeError, ConfigError, StageError
from tasks.foundation.process import ROOT
from tasks.foundation.records import Record
from tasks.foundation.s3_path import whole
from tasks.monitoring.deadlines import check_schedule, next_fire
from tasks.planning.next_run import due_span

SECONDS = 180.0  # limit of `prefect deploy`; it takes about 15 s on an idle machine
REQUEST_SECONDS = "60"  # one that timed out is not sent again, and half the deployments would be the earlier ones


class DeploymentLine(Record):
    """One deployment on the server."""

    name: str = Field(description="name of the deployment")
    cron: str | None = Field(description="cron of the schedule; null: started by hand only")
    timezone: str | None
    active: bool = Field(description="false: its schedule was paused in the UI and stays so")
    next_at: str | None = Field(description="next start, in its time zone; null: by hand only, or paused")
    next_span: str | None = Field(description="span that the next run of the pipeline will take")
    url: str


class DeployOutput(Record):
    """`millrace deploy`."""

    ui_url: str
    workspace: str
    config_file: str | None
    name: str = Field(description="first part of the deployments' names")
    work_pool: str
    queue: str = Field(description="concurrency limit in which the lineage's runs wait for each other")
    deployments: tuple[DeploymentLine, ...]
    left_over: tuple[str, ...] = Field(description="the workspace's other deployments on the server")
    alerts: tuple[str, ...] = Field(
        description="automations that send alerts; empty without --alert-url and --alert-block"
    )
    worker: str = Field(description="command that starts the worker for scheduled flow runs")


def deploy_page(output: DeployOutput) -> Parts:
    """Yield the deployments, their alerts, and the command that starts their worker."""
    rows = []
    for line in output.deployments:
        remark = f"takes {line.next_span}" if line.next_span else "" if line.active else "paused in the UI"
        then = (line.next_at or "")[:16].replace("T", " ")
        rows.append((line.name, line.cron or "by hand", line.timezone or "", then, remark))
    yield table("", ("deployment", "cron", "time zone", "next run", "note"), rows)
    for name in output.left_over:
        yield f"left over, and may still run: {name}; end it: prefect deployment delete {name}"
    yield from (f"alert: {name}" for name in output.alerts)
    yield f"Prefect UI: {output.ui_url}/deployments"
    yield f"start a worker: {output.worker}"


@command(deploy_page)
def deploy(
    options: RunOptions,
    name: Annotated[
        str | None,
        typer.Option(help="First part of the deployments' names; default: the names of workspace and pipeline."),
    ] = None,
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
    if alert_url is not None and not alert_url.startswith(("http://", "https://")):
        raise ConfigError("--alert-url must begin with http:// or https://")  # a secret, so it is not shown
    if name is not None and name != deployments.slug(name):
        raise ConfigError(f"--name {name!r} must be letters, digits and .-_, as in shop-de")
    server = prefect_server.up(prefect_server.state_home(), note)
    os.environ.setdefault("PREFECT_API_REQUEST_TIMEOUT", REQUEST_SECONDS)
    os.environ.update(prefect_server.client_environment(server))
    check_schedule(config.schedule.cron, config.schedule.timezone)  # now, since it loads Prefect

    from infra import alerts

    blocks = [alerts.block_of(each) for each in alert_block or ()]
    config_file = str(whole(options.config_file)) if options.config_file else None  # workers run elsewhere
    source = Source(
        uri=store.uri,
        config_file=config_file or "",
        overrides=tuple(options.overrides),
        pipeline=config.pipeline,
        lineage=config.lineage,
        cron=config.schedule.cron,
        zone=config.schedule.timezone,
        on_batch=any(compute_of(config, stage) == "batch" for stage in Stage),
    )
    name, pool = name or deployments.name_of(source), deployments.pool()
    tree = deployments.rendered(source, name, _kind_of(pool))
    deployments.require_own(deployments.full_names(tree), _on_server(), store.uri)
    queue = _make_pool_and_queues(store, config, pool)
    note("deploying; takes about 15 seconds")
    _send(tree)
    if alert_url is not None or blocks:
        alerts.install(alert_url, blocks, server.ui_url, pool)
    names, found = deployments.full_names(tree), _on_server()
    by_name = {one.name: one for one in found}
    return DeployOutput(
        ui_url=server.ui_url,
        workspace=store.uri,
        config_file=config_file,
        name=name,
        work_pool=pool,
        queue=queue,
        deployments=tuple(_line(by_name[each], server, store, config) for each in names),
        left_over=tuple(one.name for one in deployments.left_over(names, found, source)),
        alerts=tuple(alerts.list_installed(pool)),
        worker=worker_command(server, pool),
    )


def _on_server() -> list[Deployed]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return deployments.on_server(client)


def _kind_of(pool: str) -> str:
    from prefect.client.orchestration import get_client

    from infra import work_pool

    with get_client(sync_client=True) as client:
        return work_pool.kind_of(client, pool)


def _make_pool_and_queues(store: Store, config: Config, pool: str) -> str:
    """Make the work pool, its queue of janitors and the lineage's queue; return the name of the last."""
    from prefect.client.orchestration import get_client

    from flows.orchestration import janitors
    from flows.orchestration.lineage_queue import queue_name
    from infra import work_pool

    queue = queue_name(store, config.lineage)
    with get_client(sync_client=True) as client:
        work_pool.make_pool(client, pool)
        work_pool.limit_janitors(client, pool, janitors.QUEUE)
        client.upsert_global_concurrency_limit_by_name(queue, limit=1)
    return queue


def _send(tree: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
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


def _line(one: Deployed, server: Server, store: Store, config: Config) -> DeploymentLine:
    name, deployment = one.name, one.response
    schedule = deployment.schedules[0] if deployment.schedules else None
    active = not deployment.paused and (schedule is None or schedule.active)
    when: Any = schedule.schedule if schedule else None
    cron, zone = (when.cron, when.timezone) if when else (None, None)
    then = next_fire(cron, zone) if active and cron and zone else None
    span = None
    if then is not None and one.flow == "pipeline":
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

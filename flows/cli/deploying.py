"""`millrace deploy`: send the deployments of prefect.yaml to the server, with all that they need there.

It may be called as often as one likes: what is there is replaced, never doubled.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field
from rich.console import Console
from rich.table import Table

from configs.load import load_config
from configs.schema import Config
from infra import prefect_server
from infra.prefect_server import Server
from infra.store import Store
from tasks.due import due_span
from tasks.errors import CodeError, ConfigError, StageError
from tasks.records import Record

HOME = Path(__file__).resolve().parents[2]
FILE = HOME / "prefect.yaml"
SECONDS = 180.0  # of `prefect deploy`, which imports each flow; some 15 s on an idle machine
PULL = "prefect.deployments.steps.set_working_directory"


class DeploymentLine(Record):
    """One deployment as it is on the server now."""

    name: str
    cron: str | None = Field(description="null: by hand only")
    timezone: str | None
    active: bool = Field(description="false: its schedule, or all of it, was paused in the UI and stays so")
    next_at: str | None = Field(description="when it runs next, in its time zone; null: by hand only, or paused")
    next_span: str | None = Field(description="that this run will take, of pipeline/scheduled")
    url: str


class DeployOutput(Record):
    """`millrace deploy`."""

    ui_url: str
    workspace: str
    place: str | None
    work_pool: str
    queue: str = Field(description="the concurrency limit in which the lineage's runs wait for each other")
    deployments: tuple[DeploymentLine, ...]
    left_over: tuple[str, ...] = Field(description="on the server and of the same flows, but no longer in prefect.yaml")
    alerts: tuple[str, ...] = Field(description="automations that call the webhook; empty without --alert-url")
    worker: str = Field(description="the command that runs what is due")


def deploy(store: Store, place: Path | None, overrides: Sequence[str], alert_url: str | None) -> DeployOutput:
    """Send everything to the server, which is started if there is none, and read back what it has then.

    Raises:
        ConfigError: the settings are wrong, the schedule is no cron, or the work pool is of another kind.
        HostError: the server behind PREFECT_API_URL does not answer.
        CodeError: `prefect deploy` failed; with its words.
    """
    config = load_config(place, overrides)
    if not FILE.is_file():
        raise ConfigError(f"{FILE} is not there: deploy from the repository, or from the control image")
    if alert_url is not None and not alert_url.startswith(("http://", "https://")):
        raise ConfigError("--alert-url must begin with http:// or https://")  # it is a secret, so it isn't shown
    server = prefect_server.up(prefect_server.state_home(), _say)
    os.environ.update(prefect_server.client_environment(server))
    _check(config)
    where = str(place.resolve()) if place else None  # a worker has another working directory
    tree = _rendered(overrides)
    pool = str(tree["deployments"][0]["work_pool"]["name"])
    queue = _make_room(config, pool)
    _say("deploying, which takes a quarter of a minute")
    _send(tree, _environment(config, store, where))

    from infra import alerts

    if alert_url is not None:
        alerts.install(alert_url, server.ui_url, pool)
    names = [f"{each['entrypoint'].rpartition(':')[2]}/{each['name']}" for each in tree["deployments"]]
    lines, left_over = _read_back(names, server, store, config)
    return DeployOutput(
        ui_url=server.ui_url,
        workspace=store.uri,
        place=where,
        work_pool=pool,
        queue=queue,
        deployments=lines,
        left_over=left_over,
        alerts=tuple(alerts.installed(pool)),
        worker=f"PREFECT_API_URL={server.url} prefect worker start --pool {pool}",
    )


def show(output: DeployOutput) -> None:
    """As people read it."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("deployment", "cron", "time zone", "next run", ""):
        table.add_column(heading, overflow="fold")
    for line in output.deployments:
        then = (line.next_at or "")[:16].replace("T", " ")
        note = f"takes {line.next_span}" if line.next_span else "" if line.active else "paused in the UI"
        table.add_row(line.name, line.cron or "by hand", line.timezone or "", then, note)
    console.print(table, markup=False)
    for name in output.left_over:
        console.print(f"left over, and may still run: {name}; end it: prefect deployment delete {name}", markup=False)
    for name in output.alerts:
        console.print(f"alert: {name}", highlight=False, markup=False)
    console.print(f"Prefect UI: {output.ui_url}/deployments", highlight=False, markup=False, soft_wrap=True)
    console.print(f"start a worker: {output.worker}", highlight=False, markup=False, soft_wrap=True)


def _check(config: Config) -> None:
    """Prefect's own opinion of the schedule, before anything is changed."""
    from prefect.client.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=config.schedule.cron, timezone=config.schedule.timezone)
    except ValueError as error:
        raise ConfigError(
            f"schedule.cron {config.schedule.cron!r} is none: minute, hour, day of the month, month, day of the week, "
            "as in '0 6 * * 1'"
        ) from error


def _rendered(overrides: Sequence[str]) -> dict[str, Any]:
    """prefect.yaml with what Prefect's templates can't: lists, and values that are needed by the worker."""
    tree = yaml.safe_load(FILE.read_text())
    tree["pull"] = [{PULL: {"directory": str(HOME)}}]
    for deployment in tree["deployments"]:
        deployment["parameters"]["overrides"] = list(overrides)
    return tree


def _environment(config: Config, store: Store, place: str | None) -> dict[str, str]:
    """What the templates of prefect.yaml name."""
    return {
        **os.environ,
        "MILLRACE_HOME": str(HOME),
        "MILLRACE_WORKSPACE": store.uri,
        "MILLRACE_PLACE": place or "",
        "MILLRACE_CRON": config.schedule.cron,
        "MILLRACE_ZONE": config.schedule.timezone,
    }


def _make_room(config: Config, pool: str) -> str:
    """The work pool, and the queue of the lineage, whose name is returned."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound
    from prefect.workers.process import ProcessWorker

    from flows.turns import queue_name

    queue = queue_name(config.lineage)
    with get_client(sync_client=True) as client:
        try:
            kind = client.read_work_pool(pool).type
        except ObjectNotFound:
            template = ProcessWorker.get_default_base_job_template()
            client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
        else:
            if kind != "process":
                raise ConfigError(
                    f"the server's work pool {pool} is of type {kind}, and flows run as processes of the worker; "
                    f"rename that pool, or delete it: prefect work-pool delete {pool}"
                )
        client.upsert_global_concurrency_limit_by_name(queue, limit=1)
    return queue


def _send(tree: dict[str, Any], environment: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(yaml.safe_dump(tree, sort_keys=False))
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
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
            )
        except subprocess.TimeoutExpired as error:
            raise CodeError(f"`prefect deploy` was not done after {SECONDS:.0f} s; is the server busy?") from error
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-20:])
        raise CodeError(f"`prefect deploy` ended with status {done.returncode}; it says:\n{tail}")


def _read_back(
    names: Sequence[str], server: Server, store: Store, config: Config
) -> tuple[tuple[DeploymentLine, ...], tuple[str, ...]]:
    """The deployments as they are on the server, and the names of others of the same flows."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    ours = FlowFilter(name=FlowFilterName(any_=sorted({name.partition("/")[0] for name in names})))
    with get_client(sync_client=True) as client:
        flows = {flow.id: flow.name for flow in client.read_flows(flow_filter=ours)}
        there = {f"{flows[one.flow_id]}/{one.name}": one for one in client.read_deployments(flow_filter=ours)}
    lines = tuple(_line(name, there[name], server, store, config) for name in names)
    return lines, tuple(sorted(set(there) - set(names)))


def _line(name: str, deployment: Any, server: Server, store: Store, config: Config) -> DeploymentLine:
    schedule = deployment.schedules[0] if deployment.schedules else None
    active = not deployment.paused and (schedule is None or schedule.active)
    cron, zone = (schedule.schedule.cron, schedule.schedule.timezone) if schedule else (None, None)
    then = _next(cron, zone) if active and cron and zone else None
    span = None
    if then is not None and name == "pipeline/scheduled":
        with contextlib.suppress(StageError):  # the run will say it
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


def _next(cron: str, zone: str) -> dt.datetime:
    """As the server's own scheduler has it; its runs are made some seconds after a deployment."""
    from prefect.server.schemas.schedules import CronSchedule

    (then,) = asyncio.run(CronSchedule(cron=cron, timezone=zone).get_dates(n=1))
    return then


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

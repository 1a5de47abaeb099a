"""Checks of the Prefect server: versions, database, work pool and workers, deployments and their next runs.

`infra.prefect_server` finds the server. Importing Prefect takes a second; its environment must be set first.
"""

from __future__ import annotations

import datetime as dt
import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from infra.deployments import Deployed, Source, differences, name_of, name_on_server, on_server, rendered
from infra.prefect_server import Server, running
from infra.work_pool import worker_command
from tasks.doctor.checks import CheckResult
from tasks.foundation.nouns import plural

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import Worker, WorkPool
    from prefect.client.schemas.responses import DeploymentResponse

POOL = "millrace"
SCHEDULED = "pipeline"  # a deployment of this flow must always have a next run
_WAITS_TOO_LONG = dt.timedelta(minutes=5)
_BEATS = 3  # a worker that missed more heartbeats counts as dead
_MOST = 200  # the size of a page in Prefect's API
_ADDRESSES = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL")


def reachable(home: Path, found: list[Server]) -> CheckResult:
    """Find a server that answers and append it to `found`. Raises ServerError: PREFECT_API_URL does not answer."""
    server = running(home)
    if server is not None:
        found.append(server)
        return CheckResult("ok", f"{server.url} answers" + (f" (process {server.pid})" if server.pid else ""))
    if (home / "server.json").exists():  # `down` would have removed it
        return CheckResult(
            "FAIL", f"the server that was started here does not answer; its log is {home}/server.log", "millrace up"
        )
    return CheckResult(
        "warn",
        f"no server runs here, and PREFECT_API_URL is not set (its state would be in {home})",
        "runs by hand start a server themselves; for scheduled runs: millrace up, or set PREFECT_API_URL",
    )


def versions() -> CheckResult:
    """Compare the versions of client and server."""
    with _client() as client:
        theirs = client.api_version()
    ours = metadata.version("prefect")
    if theirs == ours:
        return CheckResult("ok", f"server and client are {ours}")
    older = _numbers(theirs) < _numbers(ours)
    return CheckResult(
        "FAIL" if older else "warn",
        f"the server is {theirs}, the client here {ours}",
        f"install prefect=={ours} on the server's machine" if older else f"pip install prefect=={theirs}",
    )


def database(server: Server) -> CheckResult:
    """Check the kind of database. SQLite allows one writer at a time, which suits one worker."""
    with _client() as client:
        kind = _database_kind(server, client)
        workers = len(_alive(client)) if _pool(client) else 0
    if kind is None:
        return CheckResult("ok", "the server does not say which; see docs/operations.md")
    if kind == "SQLite" and workers > 1:
        return CheckResult("warn", f"SQLite, and {workers} workers write to it", "move to Postgres: docs/operations.md")
    return CheckResult("ok", kind)


def workers(server: Server) -> CheckResult:
    """Check the work pool and that a worker serves it."""
    with _client() as client:
        needed, pool = bool(_deployments(client)), _pool(client)
        if pool is None:
            missing = f"there is no work pool {POOL}"
            if needed:
                return CheckResult("FAIL", missing, "millrace deploy")
            return CheckResult("ok", f"{missing}, and nothing is deployed")
        alive = _alive(client)
        known = client.read_workers_for_work_pool(POOL, limit=_MOST)
    if pool.is_paused:
        return CheckResult("FAIL", f"work pool {POOL} is paused: nothing starts", f"prefect work-pool resume {POOL}")
    if alive:
        return CheckResult("ok", f"{len(alive)} in pool {POOL}: " + ", ".join(_last_seen(worker) for worker in alive))
    last = max(known, key=lambda worker: str(worker.last_heartbeat_time), default=None)
    found = f"no worker of pool {POOL} is alive" + (f"; the last was {_last_seen(last)}" if last else "")
    return CheckResult("FAIL" if needed else "warn", found, worker_command(server, POOL))


def deployments(source: Source) -> CheckResult:
    """Check the workspace's deployments, their pauses, the time of the next run, and compare them with prefect.yaml."""
    with _client() as client:
        every = on_server(client)
        found = [one for one in every if one.workspace == source.uri]
        if not found:
            return CheckResult(
                "ok",
                "nothing is deployed for this workspace: runs are started by hand; for scheduled ones: millrace deploy",
            )
        paused = [one.name for one in found if one.response.paused or _asleep(one.response)]
        scheduled = [one.name for one in found if one.flow == SCHEDULED]
        next_run = _next_run(client, found)
        kind = pool.type if (pool := _pool(client)) is not None else "process"
    names = ", ".join(one.name for one in found)
    if paused:
        return CheckResult(
            "warn", f"paused: {', '.join(paused)} (of {names})", "resume them with the switch on their pages"
        )
    if not scheduled:
        return CheckResult("warn", f"{names}; but no pipeline, so no run starts on a schedule", "millrace deploy")
    if next_run is None:
        return CheckResult(
            "FAIL",
            f"{' and '.join(scheduled)} has a schedule, but the server plans no run of it",
            "check the server's log for errors of the scheduler, and the versions above; then restart the server",
        )
    name = name_on_server(found, source)
    if differs := list(differences(rendered(source, name, kind), found, source)):
        own = f" --name {name}" if name != name_of(source) else ""
        return CheckResult(
            "warn",
            f"not as this workspace and these settings would be deployed; {'; '.join(differs)}",
            f"millrace deploy{own}, with the options given here; prefect deployment delete for what is left over",
        )
    return CheckResult("ok", f"{names}; next run of the pipeline: {next_run:%Y-%m-%d %H:%M} UTC")


def waiting(server: Server) -> CheckResult:
    """Check for runs that are late to start."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterExpectedStartTime, FlowRunFilterState
    from prefect.client.schemas.filters import FlowRunFilterStateType as Types
    from prefect.client.schemas.objects import StateType

    before = FlowRunFilterExpectedStartTime(before_=dt.datetime.now(dt.UTC) - _WAITS_TOO_LONG)  # pyright: ignore[reportArgumentType]
    state = FlowRunFilterState(type=Types(any_=[StateType.SCHEDULED, StateType.PENDING]))
    with _client() as client:
        late = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=state, expected_start_time=before), limit=_MOST
        )
    if not late:
        return CheckResult("ok", "no run is waiting for a worker")
    oldest = min(late, key=lambda run: str(run.expected_start_time))
    return CheckResult(
        "FAIL",
        f"{plural(len(late), 'run')} should have started and did not, the first {oldest.name} at "
        f"{oldest.expected_start_time:%Y-%m-%d %H:%M} UTC",
        f"if no worker is alive: {worker_command(server, POOL)}; else check the concurrency limits in the UI",
    )


def _client() -> SyncPrefectClient:
    from prefect.client.orchestration import get_client

    return get_client(sync_client=True)


def _deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    return [found for found in client.read_deployments(limit=_MOST) if found.work_pool_name == POOL]


def _asleep(deployment: DeploymentResponse) -> bool:
    """Return True if the deployment has schedules, but no active one."""
    return bool(deployment.schedules) and not any(schedule.active for schedule in deployment.schedules)


def _next_run(client: SyncPrefectClient, found: list[Deployed]) -> dt.datetime | None:
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId, FlowRunFilter, FlowRunFilterState
    from prefect.client.schemas.filters import FlowRunFilterStateType as Types
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(
            id=DeploymentFilterId(any_=[each.response.id for each in found if each.flow == SCHEDULED])
        ),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=Types(any_=[StateType.SCHEDULED]))),
        sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        limit=1,
    )
    return runs[0].expected_start_time if runs else None


def _pool(client: SyncPrefectClient) -> WorkPool | None:
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_work_pool(POOL)
    except ObjectNotFound:
        return None


def _alive(client: SyncPrefectClient) -> list[Worker]:
    """Return the workers with recent heartbeats: the server shows a killed worker as online for a while."""
    known = client.read_workers_for_work_pool(POOL, limit=_MOST)
    return [
        worker
        for worker in known
        if worker.last_heartbeat_time
        and _age(worker.last_heartbeat_time) <= _BEATS * (worker.heartbeat_interval_seconds or 30)
    ]


def _last_seen(worker: Worker) -> str:
    seen = worker.last_heartbeat_time
    return f"{worker.name}, last seen {_age(seen):.0f} s ago" if seen else f"{worker.name}, never seen"


def _age(moment: dt.datetime) -> float:
    return max(0.0, (dt.datetime.now(dt.UTC) - moment).total_seconds())


def _database_kind(server: Server, client: SyncPrefectClient) -> str | None:
    """Return the database's name; None if unknown, since the server hides an address that was set as a URL."""
    settings = client.request("GET", "/admin/settings").json()
    if driver := settings["server"]["database"]["driver"]:
        return _kind(driver)
    if server.pid is not None and (address := _address_of(server.pid)):
        return _kind(address)
    return "SQLite" if (Path(settings["home"]) / "prefect.db").exists() else None


def _kind(address: str) -> str:
    return "PostgreSQL" if address.startswith("postgresql") else "SQLite"


def _address_of(pid: int) -> str | None:
    """Return the database's address from the environment of a server on this machine; Linux only."""
    try:
        entries = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
    except OSError:
        return None
    pairs = {name: value for name, _, value in (entry.partition("=") for entry in entries)}
    return next((pairs[name] for name in _ADDRESSES if name in pairs), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())

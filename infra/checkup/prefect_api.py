"""The Prefect server and what it knows: versions, database, work pool and workers, deployments and their next runs.

Everything is asked of a server that `infra.prefect_server` found to answer. Needs Prefect, which takes a second to
load, and its environment set before.
"""

from __future__ import annotations

import datetime as dt
import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from infra.checkup.finding import Seen
from infra.prefect_server import Server, running

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import Worker, WorkPool
    from prefect.client.schemas.responses import DeploymentResponse

POOL = "millrace"
SCHEDULED = "pipeline/scheduled"  # the deployment that must always have a next run
_WAITS_TOO_LONG = dt.timedelta(minutes=5)
_START_WORKER = f"prefect worker start --pool {POOL}"
_BEATS = 3  # heartbeats that a worker may miss and still be alive
_MOST = 200  # of what is listed; a page of Prefect's
_ADDRESSES = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL")


def reachable(home: Path, found: list[Server]) -> Seen:
    """Whether a server answers; it is put into `found`. Raises HostError: the one behind PREFECT_API_URL doesn't."""
    server = running(home)
    if server is not None:
        found.append(server)
        return Seen("ok", f"{server.url} answers" + (f" (process {server.pid})" if server.pid else ""))
    if (home / "server.json").exists():  # `down` would have removed it
        return Seen(
            "FAIL", f"the server that was started here answers no more; its log is {home}/server.log", "millrace up"
        )
    return Seen(
        "warn",
        f"none runs here, and PREFECT_API_URL names none (state would lie in {home})",
        "nothing to do for runs by hand, which start one; for scheduled ones: millrace up, or set PREFECT_API_URL",
    )


def versions() -> Seen:
    """Client and server."""
    with _client() as client:
        theirs = client.api_version()
    ours = metadata.version("prefect")
    if theirs == ours:
        return Seen("ok", f"server and client are {ours}")
    older = _numbers(theirs) < _numbers(ours)
    return Seen(
        "FAIL" if older else "warn",
        f"the server is {theirs}, the client here {ours}",
        f"put prefect=={ours} on the server's machine" if older else f"pip install prefect=={theirs}",
    )


def database(server: Server) -> Seen:
    """Where the server keeps its memory. SQLite has one writer, which one worker gets along with."""
    with _client() as client:
        kind = _database_kind(server, client)
        workers = len(_alive(client)) if _pool(client) else 0
    if kind is None:
        return Seen("ok", "the server does not tell which; see docs/operations.md")
    if kind == "SQLite" and workers > 1:
        return Seen("warn", f"SQLite, and {workers} workers write to it", "move to Postgres: docs/operations.md")
    return Seen("ok", kind)


def workers() -> Seen:
    """The work pool, and whether somebody takes work from it."""
    with _client() as client:
        needed, pool = bool(_deployments(client)), _pool(client)
        if pool is None:
            told = f"there is no work pool {POOL}"
            return Seen("FAIL", told, "millrace deploy") if needed else Seen("ok", f"{told}, and nothing is deployed")
        alive = _alive(client)
        known = client.read_workers_for_work_pool(POOL, limit=_MOST)
    if pool.is_paused:
        return Seen("FAIL", f"work pool {POOL} is paused: nothing starts", f"prefect work-pool resume {POOL}")
    if alive:
        return Seen("ok", f"{len(alive)} in pool {POOL}: " + ", ".join(_heard_of(worker) for worker in alive))
    last = max(known, key=lambda worker: str(worker.last_heartbeat_time), default=None)
    told = f"no worker of pool {POOL} is alive" + (f"; the last was {_heard_of(last)}" if last else "")
    return Seen("FAIL" if needed else "warn", told, _START_WORKER)


def deployments() -> Seen:
    """What is deployed, what is paused, and what starts next."""
    with _client() as client:
        found = _deployments(client)
        if not found:
            return Seen("ok", "nothing is deployed: runs are started by hand; for scheduled ones: millrace deploy")
        paused = sorted(_name(one) for one in found if one.paused or _asleep(one))
        next_run = _next_run(client, found)
    names = ", ".join(sorted(map(_name, found)))
    if paused:
        return Seen("warn", f"paused: {', '.join(paused)} (of {names})", "the switch on their pages wakes them")
    if SCHEDULED not in map(_name, found):
        return Seen("warn", f"{names}; but not {SCHEDULED}, so no run starts by itself", "millrace deploy")
    if next_run is None:
        return Seen(
            "FAIL",
            f"the server plans no run of {SCHEDULED}, though it has a schedule",
            "look for errors of the scheduler in the server's log, and at the versions above; then restart the server",
        )
    return Seen("ok", f"{names}; next run of {SCHEDULED}: {next_run:%Y-%m-%d %H:%M} UTC")


def waiting() -> Seen:
    """Runs whose time has come and that nobody has started."""
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
        return Seen("ok", "no run waits for a worker")
    oldest = min(late, key=lambda run: str(run.expected_start_time))
    return Seen(
        "FAIL",
        f"{len(late)} run{'s' * (len(late) > 1)} should have started and did not, the first {oldest.name} at "
        f"{oldest.expected_start_time:%Y-%m-%d %H:%M} UTC",
        f"if no worker is alive: {_START_WORKER}; else look at the concurrency limits on the pages",
    )


def _client() -> SyncPrefectClient:
    from prefect.client.orchestration import get_client

    return get_client(sync_client=True)


def _deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    return [one for one in client.read_deployments(limit=_MOST) if one.work_pool_name == POOL]


def _name(deployment: DeploymentResponse) -> str:
    """Flow and deployment; the flow's function has its name."""
    return f"{(deployment.entrypoint or '').rpartition(':')[2]}/{deployment.name}"


def _asleep(deployment: DeploymentResponse) -> bool:
    """Whether it has schedules and none is active."""
    return bool(deployment.schedules) and not any(schedule.active for schedule in deployment.schedules)


def _next_run(client: SyncPrefectClient, found: list[DeploymentResponse]) -> dt.datetime | None:
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId, FlowRunFilter, FlowRunFilterState
    from prefect.client.schemas.filters import FlowRunFilterStateType as Types
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(
            id=DeploymentFilterId(any_=[one.id for one in found if _name(one) == SCHEDULED])
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
    """By their heartbeats: for the server, a worker that was killed is online for a while."""
    known = client.read_workers_for_work_pool(POOL, limit=_MOST)
    return [
        worker
        for worker in known
        if worker.last_heartbeat_time
        and _age(worker.last_heartbeat_time) <= _BEATS * (worker.heartbeat_interval_seconds or 30)
    ]


def _heard_of(worker: Worker) -> str:
    heard = worker.last_heartbeat_time
    return f"{worker.name}, heard of {_age(heard):.0f} s ago" if heard else f"{worker.name}, never heard of"


def _age(moment: dt.datetime) -> float:
    return max(0.0, (dt.datetime.now(dt.UTC) - moment).total_seconds())


def _database_kind(server: Server, client: SyncPrefectClient) -> str | None:
    """By name; None where the server keeps it to itself: of an address given whole, it shows nothing."""
    settings = client.request("GET", "/admin/settings").json()
    if driver := settings["server"]["database"]["driver"]:
        return _kind(driver)
    if server.pid is not None and (address := _address_of(server.pid)):
        return _kind(address)
    return "SQLite" if (Path(settings["home"]) / "prefect.db").exists() else None


def _kind(address: str) -> str:
    return "PostgreSQL" if address.startswith("postgresql") else "SQLite"


def _address_of(pid: int) -> str | None:
    """The database's address in the environment of a server on this machine; elsewhere than on Linux none is found."""
    try:
        entries = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
    except OSError:
        return None
    pairs = {name: value for name, _, value in (entry.partition("=") for entry in entries)}
    return next((pairs[name] for name in _ADDRESSES if name in pairs), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())

"""Set lost flow runs, whose process is gone, to Crashed: Prefect would show them as Running for ever.

Only the workspace decides that a run is lost: it has no recorded end, and no process holds the lock, or another
invocation of the same run has followed.
"""

import datetime as dt
import time
from collections.abc import Iterator
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from infra.store.base import Store
from tasks.backfill import backfill_state
from tasks.backfill.backfill_state import is_lost
from tasks.contracts.workspace import INVOCATION
from tasks.monitoring.deadlines import START_MINUTES
from tasks.running.stage_output import logger
from tasks.runs.invocations import is_held
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

SILENT = dt.timedelta(minutes=START_MINUTES)  # by then a run holds its lock, or waits for the holder
GAP_SECONDS = 30.0  # longer than a run over several spans is without its lock between two spans
_LOOK_SECONDS = 2.0
LOST = "the process is gone and recorded no end; run it again: finished stages are kept"


def set_lost_runs_crashed(store: Store) -> None:
    """Set each lost flow run, and its parent flow runs, to Crashed."""
    found: dict[UUID, FlowRun] = {}
    with get_client(sync_client=True) as client:
        for identity in _lost(store):
            for run in _with_parents(client, identity):
                found[run.id] = run
        for run in found.values():
            client.set_flow_run_state(run.id, Crashed(message=LOST), force=True)
            logger().warning("%s: %s", run.name, LOST)


def set_silent_run_crashed(store: Store, lineage: str, identity: str) -> None:
    """Set a flow run to Crashed if it has shown Pending or Running for a while, and no process works on its lineage."""
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(UUID(identity))
        except ObjectNotFound:
            return
        begun = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
        if run.state is None or run.state.type not in begun:
            return
        if dt.datetime.now(dt.UTC) - run.state.timestamp > SILENT and _stays_free(store, lineage):
            client.set_flow_run_state(run.id, Crashed(message=LOST), force=True)
            logger().warning("%s: %s", run.name, LOST)


def _stays_free(store: Store, lineage: str) -> bool:
    until = time.monotonic() + GAP_SECONDS
    while time.monotonic() < until:
        if is_held(store, lineage):
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _lost(store: Store) -> Iterator[str]:
    snapshot = Snapshot(store)
    snapshot.fetch(key for files in snapshot.runs.values() for key in files if INVOCATION.match(key))
    for run_key in snapshot.runs:
        yield from (one.flow_run for one in Run(snapshot, run_key).lost_invocations)
    for backfill in backfill_state.read_all(store):
        if is_lost(store, backfill):
            yield backfill.flow_run
            yield from (span.flow_run for span in backfill.spans if "running" in span.steps)


def _with_parents(client: SyncPrefectClient, identity: str) -> Iterator[FlowRun]:
    """Yield the flow run and its parents, in whose process it ran, as long as they show Running."""
    try:
        run = client.read_flow_run(UUID(identity))
        if _shows_running(run):
            yield run
            if run.parent_task_run_id is not None:
                parent = client.read_task_run(run.parent_task_run_id).flow_run_id
                yield from _with_parents(client, str(parent))
    except (ObjectNotFound, ValueError):  # another server's run, or started without a server
        return


def _shows_running(run: FlowRun) -> bool:
    """Return True if the run has shown Running for a while; a new run may not hold its lock yet."""
    if run.state is None or run.state.type not in (StateType.RUNNING, StateType.CANCELLING):
        return False
    return dt.datetime.now(dt.UTC) - run.state.timestamp > dt.timedelta(minutes=START_MINUTES)

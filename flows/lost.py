"""Flow runs whose process is gone, which Prefect shows as Running for ever: they are set to Crashed, and so told of.

What is gone is known from the workspace alone: no end on record, and nobody holds the lock.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from infra.store import Store
from tasks import backfill_state
from tasks.backfill_runs import is_lost
from tasks.deadlines import START_MINUTES
from tasks.freshness import FreshnessReport
from tasks.sinks import logger

GONE = "its process is gone and left no end on record; run again, it goes on from what is done"


def set_crashed(store: Store, report: FreshnessReport) -> None:
    """Set the lost ones to Crashed, each with the flow runs that it was part of."""
    found: dict[UUID, FlowRun] = {}
    with get_client(sync_client=True) as client:
        for identity in _lost(store, report):
            for run in _with_parents(client, identity):
                found[run.id] = run
        for run in found.values():
            client.set_flow_run_state(run.id, Crashed(message=GONE), force=True)
            logger().warning("%s: %s", run.name, GONE)


def _lost(store: Store, report: FreshnessReport) -> Iterator[str]:
    yield from (clock.flow_run for clock in report.clocks if clock.lost)
    for backfill in backfill_state.everywhere(store):
        if is_lost(store, backfill):
            yield backfill.flow_run
            yield from (span.flow_run for span in backfill.spans if "running" in span.steps)


def _with_parents(client: SyncPrefectClient, identity: str) -> Iterator[FlowRun]:
    """The flow run, and those in whose process it ran, as far as they show Running."""
    try:
        run = client.read_flow_run(UUID(identity))
        if _shows_running(run):
            yield run
            if run.parent_task_run_id is not None:
                parent = client.read_task_run(run.parent_task_run_id).flow_run_id
                yield from _with_parents(client, str(parent))
    except (ObjectNotFound, ValueError):  # of another server, or begun without one
        return


def _shows_running(run: FlowRun) -> bool:
    """One that was begun again a moment ago may not have come to its lock yet."""
    if run.state is None or run.state.type not in (StateType.RUNNING, StateType.CANCELLING):
        return False
    return dt.datetime.now(dt.UTC) - run.state.timestamp > dt.timedelta(minutes=START_MINUTES)

"""Janitors, such as watch and reaper: late runs collapse into the newest one, dead ones free their slot.

While a worker is away, each schedule collects many late runs. Since a janitor works on the present state, the newest
run does the work of all.
"""

import datetime as dt
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterWorkQueueName,
)
from prefect.client.schemas.objects import FlowRun, StateType, WorkerStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime import deployment, flow_run
from prefect.states import Completed, Crashed

from tasks.running.stage_output import logger

P = ParamSpec("P")
R = TypeVar("R")

QUEUE = "janitors"  # the work pool's queue for watch, reaper and report, see prefect.yaml
LONGEST_SECONDS = 3600.0  # Prefect ends a janitor that runs longer
_DEAD_AFTER = dt.timedelta(seconds=LONGEST_SECONDS) + dt.timedelta(minutes=10)
_WORKER = "prefect.worker.name"  # the label that a worker gives its runs; each start of a worker has a name of its own
_BEGUN = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
_OPEN = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING)


def newest_only(body: Callable[P, R]) -> Callable[P, R]:
    """Decorate a flow to end at once, in the state Collapsed, if a later run of its deployment is due too.

    The late runs between the two end too, before they get a process.
    """

    @functools.wraps(body)
    def flow_body(*args: P.args, **kwargs: P.kwargs) -> R:
        newest = _newest_that_is_due()
        if newest is None:
            return body(*args, **kwargs)
        collapsed: Any = Completed(name="Collapsed", message=f"{newest.name}, due later, does the work", data=None)
        return collapsed

    # Prefect looks up the names of annotations in the function's module, which is this one.
    flow_body.__signature__ = inspect.signature(body, eval_str=True)  # pyright: ignore[reportAttributeAccessIssue]
    return flow_body


def end_dead_janitors() -> None:
    """Set janitors to Crashed whose process is gone: each would block one of the few slots.

    It is gone if its worker sends no heartbeat any more, as after a power cut, or if it has run beyond its time limit.
    """
    asked = FlowRunFilter(work_queue_name=FlowRunFilterWorkQueueName(any_=[QUEUE]), state=_in(_BEGUN))
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=asked):
            why = None
            if run.state is not None and dt.datetime.now(dt.UTC) - run.state.timestamp > _DEAD_AFTER:
                why = f"it has recorded no end for {_DEAD_AFTER}"
            elif (worker := run.labels.get(_WORKER)) is not None and worker not in _alive(client, run):
                why = f"its worker, {worker}, sends no heartbeat"
            if why is not None:
                message = f"{why}, so its process is gone"
                client.set_flow_run_state(run.id, Crashed(message=message), force=True)
                logger().warning("%s: %s", run.name, message)


def _alive(client: SyncPrefectClient, run: FlowRun) -> list[str]:
    """Return the names of the workers of a run's pool from which the server still gets heartbeats."""
    if run.work_pool_name is None:
        return []
    workers = client.read_workers_for_work_pool(run.work_pool_name)
    return [worker.name for worker in workers if worker.status is WorkerStatus.ONLINE]


def _newest_that_is_due() -> FlowRun | None:
    """Return the last due run of this run's deployment, unless it is this one; end the runs between the two."""
    if not flow_run.id or not deployment.id:
        return None
    with get_client(sync_client=True) as client:
        mine = client.read_flow_run(UUID(flow_run.id))
        later = [run for run in _due(client, mine) if _is_later(run, mine)]
        for run in later[1:]:
            if run.state is not None and run.state.type is StateType.SCHEDULED:
                message = f"{later[0].name}, due later, does the work"
                client.set_flow_run_state(run.id, Completed(name="Collapsed", message=message), force=True)
    return later[0] if later else None


def _due(client: SyncPrefectClient, mine: FlowRun) -> list[FlowRun]:
    """Return the deployment's due and running runs, newest first."""
    asked = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[mine.deployment_id] if mine.deployment_id else []),
        state=_in(_OPEN),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=dt.datetime.now(dt.UTC)),  # pyright: ignore[reportArgumentType]
    )
    return client.read_flow_runs(flow_run_filter=asked, sort=FlowRunSort.EXPECTED_START_TIME_DESC)


def _is_later(run: FlowRun, mine: FlowRun) -> bool:
    """Return True if a run does the same work and is due later."""
    if run.expected_start_time is None or mine.expected_start_time is None or run.parameters != mine.parameters:
        return False
    return run.id != mine.id and run.expected_start_time > mine.expected_start_time


def _in(types: tuple[StateType, ...]) -> FlowRunFilterState:
    return FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types)))

"""The flow run of a piece of work: one for each idempotency key, run again as often as the work needs it.

Prefect's own subflows have no such keys; a second asking would show as a second flow run.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect import Flow, Task, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import FlowRunCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, FlowRunPolicy, State, StateType
from prefect.runtime import flow_run
from prefect.states import Pending, Scheduled, to_state_create

from flows.cancelling import end_jobs


def child_run(flow: Flow[..., Any], key: str, parameters: dict[str, Any], name: str, tags: list[str]) -> FlowRun:
    """The flow run with this key, to be run now: made as a child of the flow run in which this is called, or found.

    One that came to an end before, or whose process was killed, is set back to Scheduled. Nobody else may run it
    meanwhile: hold a lock of the work.
    """
    with get_client(sync_client=True) as client:
        by_key = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key]))
        found = client.read_flow_runs(flow_run_filter=by_key, limit=1)
        run = found[0] if found else _made(client, flow, key, parameters, name)
        client.update_flow_run(run.id, tags=sorted({*run.tags, *tags}))
        if run.state is None or run.state.type not in (StateType.SCHEDULED, StateType.PENDING):
            client.set_flow_run_state(run.id, Scheduled(), force=True)
        return client.read_flow_run(run.id)


def _made(client: SyncPrefectClient, flow: Flow[..., Any], key: str, parameters: dict[str, Any], name: str) -> FlowRun:
    """A new one. The task run in between is how Prefect tells that a flow run is part of another."""
    parent = flow_run.id
    stands_for = Task(flow.fn, name=flow.name)
    wanted = FlowRunCreate(
        flow_id=client.create_flow(flow),
        flow_version=flow.version,
        name=name,
        parameters=parameters,
        parent_task_run_id=client.create_task_run(stands_for, UUID(parent), key, name=name).id if parent else None,
        state=to_state_create(Pending()),
        idempotency_key=key,
        empirical_policy=FlowRunPolicy(retries=flow.retries, retry_delay=int(flow.retry_delay_seconds or 0)),
    )
    response = client.request("POST", "/flow_runs/", json=wanted.model_dump(mode="json", exclude_unset=True))
    return FlowRun.model_validate(response.json())


def end_jobs_of_children(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Hook, run by worker or runner in a process of its own: end what the flow runs that it began left on AWS Batch."""
    by_tag = FlowRunFilter(tags=FlowRunFilterTags(all_=[asked_by(str(flow_run.id))]))
    with get_client(sync_client=True) as client:
        children = client.read_flow_runs(flow_run_filter=by_tag)
    for child in children:
        asked = child.model_copy(update={"parameters": flow_run.parameters})
        end_jobs(flow, asked, state)


def asked_by(run: str) -> str:
    """The tag of a child flow run that tells which flow run began it last."""
    return f"asked-by:{run}"

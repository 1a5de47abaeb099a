"""Child flow runs with an idempotency key: the same work always has the same flow run.

Prefect's own subflows have no such keys, so the same work run twice would show as two flow runs.
"""

from typing import Any
from uuid import UUID

from prefect import Flow, Task, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import FlowRunCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, FlowRunPolicy, State, StateType
from prefect.runtime import flow_run
from prefect.states import Pending, Scheduled, to_state_create

from flows.running.cancelling import end_jobs


def child_run(flow: Flow[..., Any], key: str, parameters: dict[str, Any], name: str, tags: list[str]) -> FlowRun:
    """Find the flow run with this key, or make it as a child of the current flow run; return it ready to run.

    A flow run that ended or was killed is set back to Scheduled. The caller holds a lock of the work, so that no other
    process runs it.
    """
    with get_client(sync_client=True) as client:
        by_key = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key]))
        found = client.read_flow_runs(flow_run_filter=by_key, limit=1)
        run = found[0] if found else _new_run(client, flow, key, parameters, name)
        client.update_flow_run(run.id, tags=sorted({*run.tags, *tags}))
        if run.state is None or run.state.type not in (StateType.SCHEDULED, StateType.PENDING):
            client.set_flow_run_state(run.id, Scheduled(), force=True)
        return client.read_flow_run(run.id)


def _new_run(
    client: SyncPrefectClient, flow: Flow[..., Any], key: str, parameters: dict[str, Any], name: str
) -> FlowRun:
    """Make a new flow run. Prefect records its parent through a task run in between."""
    parent = flow_run.id
    between = Task(flow.fn, name=flow.name)
    create = FlowRunCreate(
        flow_id=client.create_flow(flow),
        flow_version=flow.version,
        name=name,
        parameters=parameters,
        parent_task_run_id=client.create_task_run(between, UUID(parent), key, name=name).id if parent else None,
        state=to_state_create(Pending()),
        idempotency_key=key,
        empirical_policy=FlowRunPolicy(retries=flow.retries, retry_delay=int(flow.retry_delay_seconds or 0)),
    )
    response = client.request("POST", "/flow_runs/", json=create.model_dump(mode="json", exclude_unset=True))
    return FlowRun.model_validate(response.json())


def end_jobs_of_children(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """End the jobs of a cancelled flow run's children on AWS Batch. A hook, as `end_jobs`."""
    by_tag = FlowRunFilter(tags=FlowRunFilterTags(all_=[started_by_tag(str(flow_run.id))]))
    with get_client(sync_client=True) as client:
        children = client.read_flow_runs(flow_run_filter=by_tag)
    for child in children:
        with_settings = child.model_copy(update={"parameters": flow_run.parameters})
        end_jobs(flow, with_settings, state)


def started_by_tag(run: str) -> str:
    """Return the tag of a child flow run with the id of the flow run that last started it."""
    return f"asked-by:{run}"

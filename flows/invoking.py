"""One invocation of a run, as the Prefect UI and the workspace know it: its name, its tags, its record, its end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL

from infra.store import Store
from tasks import invocations
from tasks.contracts import RunPlan
from tasks.errors import FailureClass, StoreError, classify
from tasks.invocations import Invocation, State
from tasks.report import run_report
from tasks.sinks import logger

_STATES: dict[FailureClass, State] = {FailureClass.CANCELLED: "Cancelled"}


@contextlib.contextmanager
def invoked(store: Store, plan: RunPlan, scheduled_at: str | None = None) -> Iterator[Invocation]:
    """Name the flow run after its span and attempt, and keep a record of when and how it ended."""
    page = _page(flow_run.id)
    one = invocations.begin(store, plan, flow_run=flow_run.id or "", page=page, scheduled_at=scheduled_at)
    _name(plan, one)
    try:
        yield one
    except BaseException as error:
        failure = classify(error)
        try:
            invocations.end(store, one, _STATES.get(failure, "Failed"), failure, str(error))
        except (OSError, StoreError) as unwritable:  # a full disk must not hide the first error
            logger().error("the end of invocation %d was not recorded: %s", one.number, unwritable)
        raise
    invocations.end(store, one, run_report(store, plan).state)


def _name(plan: RunPlan, one: Invocation) -> None:
    """As in `2026-W47 attempt 2`, with tags to search by."""
    if not one.flow_run:
        return
    tags = {*flow_run.tags, f"span:{one.span}", f"lineage:{one.lineage}", f"run:{one.run_key}"}
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(one.flow_run), name=f"{one.span} attempt {one.number}", tags=sorted(tags))


def _page(run_id: str | None) -> str:
    """The address of a flow run's page; the server behind PREFECT_API_URL has it, where no other is set."""
    address = PREFECT_UI_URL.value() or os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
    return f"{address}/runs/flow-run/{run_id}" if run_id and address else ""

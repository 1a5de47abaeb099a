"""One invocation of a run, as the Prefect UI and the workspace know it: its name, its pages, its record, its report."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL

from flows.pages.links import links
from flows.pages.publish import publish
from flows.preloading import preloading
from flows.reports.run_page import report_key, write_run_report
from infra.store import Store
from tasks import invocations, ledger, structured
from tasks.contracts import RunPlan
from tasks.errors import FailureClass, StoreError, classify
from tasks.expected import expected_run
from tasks.invocations import Invocation, State
from tasks.report import run_report
from tasks.results import judgement_key
from tasks.sinks import logger
from tasks.stage import publishing

_STATES: dict[FailureClass, State] = {FailureClass.CANCELLED: "Cancelled"}


@contextlib.contextmanager
def invoked(store: Store, plan: RunPlan, scheduled_at: str | None = None) -> Iterator[Invocation]:
    """Name the flow run after its span and attempt, and keep a record of when and how it ended.

    Every stage that is done inside the block gets a page, and the run a report, also where it failed.
    """
    page = page_of(flow_run.id)
    expected = expected_run(store, plan)
    one = invocations.begin(
        store, plan, flow_run=flow_run.id or "", page=page, scheduled_at=scheduled_at, expected_seconds=expected
    )
    _name(plan, one)
    links(plan, one)
    judged = store.exists(judgement_key(plan.run_key))
    try:
        with structured.about_plan(plan), publishing(publish), contextlib.nullcontext() if judged else preloading():
            yield one
    except BaseException as error:
        failure = classify(error)
        try:
            invocations.end(store, one, _STATES.get(failure, "Failed"), failure, str(error))
        except (OSError, StoreError) as unwritable:  # a full disk must not hide the first error
            logger().error("the end of invocation %d was not recorded: %s", one.number, unwritable)
        _report(store, one)
        raise
    invocations.end(store, one, run_report(store, plan).state)
    _report(store, one)


def _report(store: Store, one: Invocation) -> None:
    """Write the run's report, unless nothing has happened since the last one."""
    try:
        started = (record.started_at for record in ledger.records(store, one.run_key))
        if any(at >= one.began_at for at in started) or not store.exists(report_key(one.run_key)):
            write_run_report(store, one.run_key)
    except (OSError, StoreError) as error:
        logger().warning("the report of run %s was not written: %s", one.run_key, error)


def _name(plan: RunPlan, one: Invocation) -> None:
    """As in `2026-W47 attempt 2`, with tags to search by."""
    if not one.flow_run:
        return
    tags = {*flow_run.tags, f"span:{one.span}", f"lineage:{one.lineage}", f"run:{one.run_key}"}
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(one.flow_run), name=f"{one.span} attempt {one.number}", tags=sorted(tags))


def page_of(run_id: str | None) -> str:
    """The address of a flow run's page; the server behind PREFECT_API_URL has it, where no other is set."""
    address = PREFECT_UI_URL.value() or os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
    return f"{address}/runs/flow-run/{run_id}" if run_id and address else ""

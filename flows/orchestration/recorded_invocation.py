"""One invocation of a run in the Prefect UI and in the workspace: its name, pages, record and report.

The records of ended runs are packed by month, so that long histories need few reads.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL

from flows.presentation.run.pages import links, make_stage_page
from flows.presentation.run.report import write_run_report
from infra.store.base import Store
from tasks.contracts.runs import RunPlan, RunState
from tasks.contracts.workspace import REPORT
from tasks.foundation.errors import FailureClass, StoreError, classify
from tasks.monitoring import otlp
from tasks.monitoring.estimates import run_cost
from tasks.monitoring.work_sums import sum_up
from tasks.running import json_logs
from tasks.running.context import override_context
from tasks.running.stage_output import logger
from tasks.runs import invocations
from tasks.runs.invocations import Invocation
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run, record_plan
from tasks.runs.served_targets import of_release
from tasks.runs.snapshot import Snapshot, pack_runs


def pack_past(store: Store) -> None:
    """Pack the records of ended runs, and summarise refreshes and publications."""
    try:
        pack_runs(store)
        sum_up(store)
    except (OSError, StoreError) as error:
        logger().warning("the records of runs that are over were not packed: %s", error)


def sum_up_refreshes(store: Store) -> None:
    """Summarise refreshes and publications."""
    try:
        sum_up(store)
    except (OSError, StoreError) as error:
        logger().warning("the refreshes that are over were not added up: %s", error)


class RecordedInvocation:
    """An invocation of a run, and the run."""

    def __init__(self, store: Store, plan: RunPlan, invocation: Invocation) -> None:
        self.invocation = invocation
        self._store, self._plan = store, plan

    @functools.cached_property
    def run(self) -> Run:
        """The run, with its records as they are at the first use: use it after all stages have ended."""
        return Run(Snapshot(self._store, strict=True), self._plan.run_key)


@contextlib.contextmanager
def record_invocation(store: Store, plan: RunPlan, scheduled_at: str | None = None) -> Iterator[RecordedInvocation]:
    """Name the flow run after its span and attempt, and record the time and result of the invocation's end.

    Every stage that ends inside the block gets a page, and the run an HTML report, even if it failed.
    """
    page = page_of(flow_run.id)
    cost = run_cost(store, plan)
    invocation = invocations.begin(
        store, plan, flow_run=flow_run.id or "", page=page, scheduled_at=scheduled_at, expected_seconds=cost.seconds
    )
    record_plan(store, plan.run_key, cost)
    _name(plan, invocation)
    links(plan, invocation, cost)
    recorded = RecordedInvocation(store, plan, invocation)
    try:
        with json_logs.run_log_context(plan), override_context(page_maker=make_stage_page):
            yield recorded
    except Pause:
        invocations.end(
            store, invocation, RunState.UNFINISHED, message="suspended in Prefect until it is resumed there"
        )
        _report(store, plan, invocation)
        raise
    except BaseException as error:
        failure = classify(error)
        state = RunState.CANCELLED if failure is FailureClass.CANCELLED else RunState.FAILED
        try:
            invocations.end(store, invocation, state, failure, str(error))
        except (OSError, StoreError) as unwritable:  # a full disk must not hide the first error
            logger().error("the end of invocation %d was not recorded: %s", invocation.number, unwritable)
        _report(store, plan, invocation)
        _send_timeline(store, plan)
        pack_past(store)
        raise
    invocations.end(store, invocation, recorded.run.reached)
    _report(store, plan, invocation)
    _send_timeline(store, plan)
    pack_past(store)


def _report(store: Store, plan: RunPlan, invocation: Invocation) -> None:
    """Write the HTML report of the run, unless it exists and this invocation started no attempt."""
    try:
        run = Run(Snapshot(store, strict=True), plan.run_key)
        attempts = (*run.attempts, *_publishing(store, run))
        if any(each.started_at >= invocation.began_at for each in attempts) or not store.exists(
            REPORT.key(run=plan.run_key)
        ):
            write_run_report(store, plan.run_key)
    except (OSError, StoreError) as error:
        logger().warning("the report of run %s was not written: %s", plan.run_key, error)


def _send_timeline(store: Store, plan: RunPlan) -> None:
    """Send the run's timeline if a collector is named; a suspended run's follows with its end."""
    if otlp.address() is None:
        return
    try:
        problem = otlp.send_timeline(Run(Snapshot(store, strict=True), plan.run_key))
    except (OSError, StoreError) as error:
        problem = str(error)
    if problem:
        logger().warning("the timeline of run %s was not sent: %s", plan.run_key, problem)


def _publishing(store: Store, run: Run) -> Iterator[LedgerRecord]:
    """Yield the attempts to publish the run's release."""
    if run.release is not None and run.plan is not None:
        for each in of_release(store, run.release.number, run.plan.config.publish.targets):
            yield from each.attempts


def _name(plan: RunPlan, invocation: Invocation) -> None:
    """Name the flow run as in `2026-W47 attempt 2`, and give it tags to search by."""
    if not invocation.flow_run:
        return
    name = f"{invocation.span} attempt {invocation.number}"
    tags = {*flow_run.tags, f"span:{invocation.span}", f"lineage:{invocation.lineage}", f"run:{invocation.run_key}"}
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(invocation.flow_run), name=name, tags=sorted(tags))
    except Exception as error:  # a name must not stop a run
        logger().warning("the flow run could not be named %s: %s", name, error)


def page_of(run_id: str | None) -> str:
    """Return the URL of a flow run's page, on the server of PREFECT_UI_URL if set, else of PREFECT_API_URL."""
    address = PREFECT_UI_URL.value() or os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
    return f"{address}/runs/flow-run/{run_id}" if run_id and address else ""

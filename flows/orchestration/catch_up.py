"""Start the deployed pipeline for missed spans and interrupted runs, and set lost flow runs to Crashed.

A start follows a pause, at most three times a day; tasks/monitoring/freshness.py finds the span. Only the workspace
decides that a run is lost: it has no recorded end, and no process holds the lock or another invocation has followed.
"""

import datetime as dt
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Crashed

from infra.store.base import Store
from tasks.campaigns.stored import is_lost, read_all
from tasks.contracts.workspace import INVOCATION
from tasks.monitoring import restarts
from tasks.monitoring.deadlines import START_MINUTES
from tasks.monitoring.freshness import FreshnessReport
from tasks.monitoring.restarts import PAUSES, StartedRun, Starts
from tasks.running.stage_output import logger
from tasks.runs.invocations import Invocation, is_held
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
    for backfill in read_all(store):
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


PIPELINE = "pipeline"  # the flow


class Started(NamedTuple):
    """A sentence about the run for a span; `given_up`: the starts of a day failed, so a person should look."""

    span: str
    version: int
    sentence: str
    given_up: bool = False


def start_again(store: Store, report: FreshnessReport, span: str, parameters: dict[str, Any]) -> Started:
    """Start the pipeline up to `span`, unless the run started before has not ended or its pause is not over."""
    (row,) = (row for row in report.spans if row.span == span)
    version, at = row.version or 1, dt.datetime.fromisoformat(report.at)
    known = restarts.read(store, report.lineage, span, version)
    invoked = Run(Snapshot(store, strict=True), row.run_key).invocations if row.run_key else ()
    ended = None
    if known.starts:
        last = known.starts[-1]
        set_silent_run_crashed(store, report.lineage, last.flow_run)
        state = _state(last)
        if state is not None and not state.is_final():
            return Started(span, version, f"A run of the pipeline takes {span}; it is {state.name}.")
        if state is not None and state.type is StateType.CANCELLED and not _invoked_since(invoked, last):
            sentence = f"The run of the pipeline over {span} was cancelled; go on with: millrace run --span {span}"
            return Started(span, version, sentence)
        ended = state.timestamp if state is not None else dt.datetime.fromisoformat(last.at)
    due, given_up = restarts.turn(known.starts, ended, at)
    if due > at:
        return Started(span, version, _waits(span, due, given_up), given_up)
    numbers = [0, *(one.number for one in invoked), *(start.number for start in known.starts)]
    sentence = _start(store, report, known, 1 + max(numbers), parameters)
    logger().info("%s", sentence)
    return Started(span, version, sentence)


def _start(store: Store, report: FreshnessReport, known: Starts, number: int, parameters: dict[str, Any]) -> str:
    """Start a run and record it; return a sentence about it."""
    by_hand = f"millrace run --span {report.missed[0] if report.missed else known.span}"
    deployed = _pipeline_of(report.workspace, parameters)
    if deployed is None:
        return (
            f"Missed spans wait: this workspace has no deployed pipeline (millrace deploy makes it); by hand: {by_hand}"
        )
    try:
        run: Any = run_deployment(
            deployed.id,
            parameters={**parameters, "span": known.span},
            idempotency_key=f"missed:{report.workspace}:{report.lineage}:{known.span}:v{known.version}:i{number}",
            tags=["catch-up", f"lineage:{report.lineage}"],
            timeout=0,
            as_subflow=False,
        )
    except PrefectHTTPStatusError as error:
        return f"Missed spans wait: {PIPELINE}/{deployed.name} could not be started: {error}"
    restarts.add(store, report.lineage, known, StartedRun(number=number, flow_run=str(run.id), at=report.at))
    state = run.state.name if run.state else "unknown"
    before = " and the spans missed before it" if report.missed[:-1] else ""
    return f"A run of {PIPELINE}/{deployed.name} takes {known.span}{before}; it is {state}."


def _pipeline_of(workspace: str, parameters: dict[str, Any]) -> DeploymentResponse | None:
    """Return the workspace's deployed pipeline, before others the one of the same settings; None without any."""
    of_flow = FlowFilter(name=FlowFilterName(any_=[PIPELINE]))
    with get_client(sync_client=True) as client:
        found = client.read_deployments(flow_filter=of_flow)
    ours = [each for each in found if _same_place(str((each.parameters or {}).get("workspace") or ""), workspace)]

    def has_other_settings(one: DeploymentResponse) -> bool:
        return any((one.parameters or {}).get(key) != parameters[key] for key in ("config_file", "overrides"))

    return min(ours, key=has_other_settings, default=None)


def _same_place(uri: str, workspace: str) -> bool:
    """Return True for one address; a relative one counts from this flow run's directory, as the pipeline's."""
    return bool(uri) and (uri == workspace or ("://" not in uri and str(Path(uri).absolute()) == workspace))


def _state(start: StartedRun) -> State | None:
    """Return the state of a started run; None if the server does not know it any more."""
    try:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(UUID(start.flow_run)).state
    except ObjectNotFound:
        return None


def _invoked_since(invoked: Sequence[Invocation], start: StartedRun) -> bool:
    return any(one.began_at > start.at and one.flow_run != start.flow_run for one in invoked)


def _waits(span: str, due: dt.datetime, given_up: bool) -> str:
    then = f"{due.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"
    if given_up:
        return (
            f"The pipeline was started {len(PAUSES)} times within a day for {span}, and none of these runs went "
            f"through; the next start is not before {then}. Look why: millrace report --span {span}"
        )
    return f"The pipeline is started again for {span} after {then}."

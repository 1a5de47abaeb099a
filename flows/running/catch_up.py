"""Start the deployed pipeline for missed spans and interrupted runs: after a pause, at most three times a day.

tasks/monitoring/freshness.py finds the span from the workspace; this module only starts it.
"""

import datetime as dt
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from flows.running.lost_runs import set_silent_run_crashed
from infra.store.base import Store
from tasks.monitoring import restarts
from tasks.monitoring.freshness import FreshnessReport
from tasks.monitoring.restarts import PAUSES, StartedRun, Starts
from tasks.running.stage_output import logger
from tasks.runs.invocations import Invocation
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

PIPELINE = "pipeline/scheduled"


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
            return Started(span, version, f"A run of {PIPELINE} takes {span}; it is {state.name}.")
        if state is not None and state.type is StateType.CANCELLED and not _invoked_since(invoked, last):
            sentence = f"The run of {PIPELINE} over {span} was cancelled; go on with: millrace run --span {span}"
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
    try:
        run: Any = run_deployment(
            PIPELINE,
            parameters={**parameters, "span": known.span},
            idempotency_key=f"missed:{report.workspace}:{report.lineage}:{known.span}:v{known.version}:i{number}",
            tags=["catch-up", f"lineage:{report.lineage}"],
            timeout=0,
            as_subflow=False,
        )
    except ObjectNotFound:
        by_hand = f"millrace run --span {report.missed[0] if report.missed else known.span}"
        return f"Missed spans wait: no deployment {PIPELINE} (millrace deploy makes it); by hand: {by_hand}"
    except PrefectHTTPStatusError as error:
        return f"Missed spans wait: {PIPELINE} could not be started: {error}"
    restarts.add(store, report.lineage, known, StartedRun(number=number, flow_run=str(run.id), at=report.at))
    state = run.state.name if run.state else "unknown"
    before = " and the spans missed before it" if report.missed[:-1] else ""
    return f"A run of {PIPELINE} takes {known.span}{before}; it is {state}."


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
            f"{PIPELINE} was started {len(PAUSES)} times within a day for {span}, and none of these runs went through; "
            f"the next start is not before {then}. Look why: millrace report --span {span}"
        )
    return f"{PIPELINE} is started again for {span} after {then}."

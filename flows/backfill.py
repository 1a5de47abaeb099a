"""The backfill, top to bottom: plan, tell the plan, train span after span on a branch, release at the very end.

Call it like a function (a Prefect server must answer, see infra/prefect_server.py), or deploy it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed

from configs.load import load_config
from flows.backfill_page import announce
from flows.backfill_work import carried_out, ended
from flows.cancelling import cancellable, end_jobs
from flows.child_runs import end_jobs_of_children
from flows.parameters import Overrides, Parallel, Place, Reason, SpanName, Stages, Workspace
from infra.store import open_store
from tasks.backfill import plan_backfill
from tasks.backfill_state import BackfillState


def _range() -> str:
    asked = flow_run.get_parameters()
    return f"{asked['first']} to {asked['last']}"


@flow(name="backfill", flow_run_name=_range, on_cancellation=[end_jobs, end_jobs_of_children])
@cancellable
def backfill(
    workspace: Workspace,
    first: SpanName,
    last: SpanName,
    stages: Stages = ("train", "evaluate", "infer", "release"),
    parallel: Parallel = 2,
    reason: Reason = "",
    dry_run: bool = False,
    place: Place = "",
    overrides: Overrides = (),
) -> BackfillState:
    """Bring a range of spans to what it should be: train again what was corrected or changed, fill in what is missing.

    Nothing of the lineage is touched: training goes on a branch of it. Only when all is done is the last span released,
    if the gates agree, and the lineage then continues the branch. Asking again goes on with what is not done.

    Args:
        workspace: where spans, runs and releases lie; a local directory or s3://bucket/prefix.
        first: the first span, for example 2021-Q1.
        last: the last span; it alone is released.
        stages: what is asked for; validate, health and warmup come with train. Release needs evaluate and infer.
        parallel: how many spans are evaluated and inferred at once; training is one after the other.
        reason: why, for those who look at it later.
        dry_run: only plan; the plan is this run's table artifact.
        place: path of a YAML file of settings over those of base.yaml, as the worker sees it; may be empty.
        overrides: single settings over both, as in train.learning_rate=3e-5.

    Raises:
        ConfigError: the range or the stages can't be had.
        Conflict: another process works on the same.
        StageError: of the class of the first failure, when all that could be done is done.
    """
    config = load_config(Path(place) if place else None, overrides)
    store = open_store(workspace)
    plan = plan_backfill(store, config, first, last, stages, reason, parallel)
    if dry_run or not plan.to_do:
        return _told(announce(plan, dry_run))

    with carried_out(store, plan) as work:
        for span in plan.to_do:
            if not work.start(span):  # its training failed, and all later ones stand on it
                break
        work.finish()
        if work.complete and plan.spans[-1].release == "run":
            work.release()
    return _told(ended(work))


def _told(state: BackfillState) -> BackfillState:
    """What came of it is seen as the flow run's state, a refusal by the gates by its name; the caller gets the data."""
    name = "Rejected" if state.state == "Rejected" else "Completed"
    told: Any = Completed(name=name, message=state.sentence or "Only planned.", data=state)
    return told

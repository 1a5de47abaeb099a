"""The pipeline over one span, top to bottom: what happens, in what order, and nothing about how.

Call it like a function (a Prefect server must answer, see infra/prefect_server.py), or deploy it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed

from configs.load import load_config
from flows.cancelling import cancellable, end_jobs
from flows.invoking import invoked
from flows.parameters import AnySpan, Overrides, Place, TimeZone, Workspace
from flows.turns import in_turn
from infra.store import open_store
from tasks.contracts import RunPlan
from tasks.due import due_span, missed, require_arrived, run_of
from tasks.evaluate import evaluate
from tasks.gates import refused
from tasks.health import health
from tasks.infer import infer
from tasks.ledger import now
from tasks.plan import plan_run, save_plan
from tasks.release import release
from tasks.report import RunReport, run_report, unfinished_before
from tasks.train import train
from tasks.validate import validate
from tasks.warmup import warmup


def _first_name() -> str:
    asked = flow_run.get_parameters()
    if asked["span"] or not asked["scheduled_in"]:
        return asked["span"] or "next span"
    return f"span due {flow_run.scheduled_start_time:%Y-%m-%d %H:%M} UTC"


@flow(name="pipeline", flow_run_name=_first_name, on_cancellation=[end_jobs])
@cancellable
def pipeline(
    workspace: Workspace,
    span: AnySpan = "",
    place: Place = "",
    overrides: Overrides = (),
    scheduled_in: TimeZone = "",
) -> RunReport:
    """Train on a span from the lineage's last checkpoint, and release the model with its vectors if the gates agree.

    Stages that are done are not done again: they show as Cached. A refused model ends in the state Rejected, whose
    data is the report as well. A scheduled run first runs the spans that were missed before its own.

    Args:
        workspace: where spans, runs and releases lie; a local directory or s3://bucket/prefix.
        span: for example 2022-Q4; empty: the oldest span not yet trained.
        place: path of a YAML file of settings over those of base.yaml, as the worker sees it; may be empty.
        overrides: single settings over both, as in train.learning_rate=3e-5.
        scheduled_in: the schedule's time zone, set by itself: the span is the newest that was over there by then.

    Raises:
        NothingToDo: no span was named, and all are trained.
        Conflict: another process runs on this lineage.
        StageError: of the class that stopped a stage, or the planning.
    """
    began = now()
    config = load_config(Path(place) if place else None, overrides)
    store = open_store(workspace)
    scheduled = flow_run.scheduled_start_time if scheduled_in else None  # never now: a retry takes the same span
    if scheduled is not None and scheduled_in:
        span = span or due_span(store, scheduled, scheduled_in)
        for earlier in missed(store, config, span):
            if earlier != span:
                pipeline(workspace, earlier, place, overrides)
        span = run_of(store, config, require_arrived(store, span))
    with in_turn(store, config.lineage):
        plan = plan_run(store, config, span or None)
        save_plan(store, plan)
        with invoked(store, plan, scheduled.isoformat() if scheduled else None):
            _announce(plan, unfinished_before(store, plan))

            validated = validate(plan)
            healthy = health(plan, after=validated)
            warm = warmup(plan, validated, after=healthy)
            trained = train(plan, validated, warm)
            judged = evaluate(plan, validated, warm, trained)
            if refused(judged.verdicts):
                report = run_report(store, plan, since=began)
                rejected: Any = Completed(name="Rejected", message=report.why, data=report)  # the caller gets the data
                return rejected
            inferred = infer(plan, validated, warm, trained, after=judged)
            release(plan, validated, trained, judged, inferred)
            return run_report(store, plan, since=began)


def _announce(plan: RunPlan, unfinished: str | None) -> None:
    """Tell what the plan is."""
    logger = get_run_logger()
    start = f"from step {plan.parent.step}" if plan.parent else "from nothing"
    logger.info(
        "run %s: lineage %s %s, %d span(s) up to %s",
        plan.run_key,
        plan.config.lineage,
        start,
        len(plan.window),
        plan.span.name,
    )
    if unfinished:
        logger.warning(
            "span %s was trained but never released or rejected; to finish it, run it again: --span %s",
            unfinished,
            unfinished,
        )

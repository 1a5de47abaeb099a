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
from infra.store import open_store
from tasks.alone import alone
from tasks.contracts import RunPlan
from tasks.evaluate import evaluate
from tasks.gates import refused
from tasks.health import health
from tasks.infer import infer
from tasks.ledger import now
from tasks.plan import plan_run, save_plan
from tasks.release import release
from tasks.report import RunReport, run_report, unfinished_before
from tasks.sinks import logger
from tasks.train import train
from tasks.validate import validate
from tasks.warmup import warmup


def _first_name() -> str:
    return flow_run.get_parameters()["span"] or "next span"


@flow(name="pipeline", flow_run_name=_first_name, on_cancellation=[end_jobs])
@cancellable
def pipeline(
    workspace: str,
    span: str | None = None,
    place: str | None = None,
    overrides: tuple[str, ...] = (),
) -> RunReport:
    """Train on a span from the lineage's last checkpoint, and release the model with its vectors if the gates agree.

    Stages that are done are not done again: they show as Cached. A refused model ends in the state Rejected, whose
    data is the report as well.

    Args:
        workspace: where spans, runs and releases lie; a local directory or s3://bucket/prefix.
        span: for example 2022-Q4; empty: the oldest span not yet trained.
        place: path of a YAML file of settings for this place, over those of base.yaml.
        overrides: single settings over both, as in train.learning_rate=3e-5.

    Raises:
        NothingToDo: no span was named, and all are trained.
        Conflict: another process runs on this lineage.
        StageError: of the class that stopped a stage, or the planning.
    """
    began = now()
    config = load_config(Path(place) if place else None, overrides)
    store = open_store(workspace)
    with alone(store, f"lineages/{config.lineage}.run", logger().warning):
        plan = plan_run(store, config, span or None)
        save_plan(store, plan)
        with invoked(store, plan):
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

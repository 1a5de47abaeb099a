"""Stage release, control side: the model exported and probed by a worker, then bound to its vectors and published."""

from infra.store.factory import open_store
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.outcomes import InferOutcome, ReleaseOutcome, TrainOutcome, ValidateOutcome
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.spans import first_day
from tasks.running.stage import run_stage, stage_task
from tasks.running.stage_output import logger
from tasks.runs import releases
from tasks.runs.results import Judgement
from tasks.train import model_of
from tasks.validate import catalogue_of


@stage_task
def release(
    plan: RunPlan, validated: ValidateOutcome, trained: TrainOutcome, judged: Judgement, inferred: InferOutcome
) -> Release:
    """Export the model and publish the release of this run. It becomes current unless that is of a later span."""
    model = model_of(trained)
    inputs = ReleaseInputs(model=model, vectors=inferred.prefix, catalogue=catalogue_of(plan, validated))
    exported = run_stage(plan, inputs, ReleaseOutcome)
    store = open_store(plan.workspace)
    published = releases.publish(
        store,
        span=plan.span,
        run_key=plan.run_key,
        model=model,
        model_prefix=exported.model,
        inferred=inferred,
        metrics=judged.outcome.challenger,
    )
    serving = releases.current(store)
    if serving is not None and first_day(serving.span.name) > first_day(plan.span.name):
        logger().warning(
            "release %d of span %s is kept, but release %d of span %s serves on: it has newer data",
            published.number,
            plan.span.name,
            serving.number,
            serving.span.name,
        )
    return published

"""Stage release, control side: the model exported and probed by a worker, then bound to its vectors and published."""

from collections.abc import Mapping

from infra.store.factory import open_store
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.outcomes import InferOutcome, ReleaseOutcome
from tasks.contracts.references import ModelRef
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.spans import first_day
from tasks.foundation.errors import CodeError
from tasks.running.stage import run_stage, stage_task
from tasks.running.stage_output import logger
from tasks.runs import releases


@stage_task
def release(
    plan: RunPlan,
    model: ModelRef,
    inferred: InferOutcome,
    metrics: Mapping[str, float],
    refreshed: int | None = None,
) -> Release:
    """Export the model and publish the release of this run. It becomes current unless that is of a later span.

    Args:
        metrics: of the model, on the holdout.
        refreshed: the number of the release whose model this is; None for a new model.
    """
    if inferred.catalogue is None:
        raise CodeError(f"the vectors in {inferred.prefix} are not those of a catalogue; run infer again")
    inputs = ReleaseInputs(model=model, vectors=inferred.prefix, catalogue=inferred.catalogue)
    exported = run_stage(plan, inputs, ReleaseOutcome)
    store = open_store(plan.workspace)
    published = releases.publish(
        store,
        span=plan.span,
        run_key=plan.run_key,
        model=model,
        model_prefix=exported.model,
        inferred=inferred,
        metrics=dict(metrics),
        refreshed=refreshed,
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
    elif refreshed is not None and serving is not None and serving.number != published.number:
        logger().warning(
            "release %d is kept, but release %d serves: the release that was refreshed is not current any more",
            published.number,
            serving.number,
        )
    return published

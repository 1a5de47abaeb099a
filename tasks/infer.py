"""Stage infer, control side: embed every item of a catalogue with one model."""

from infra.store.factory import open_store
from infra.store.manifest import next_folder
from tasks.contracts.jobs import InferInputs
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.references import CatalogueRef, CompileRef, ModelRef
from tasks.contracts.runs import Release, RunPlan
from tasks.foundation.errors import CodeError
from tasks.planning.start import chosen_release
from tasks.running.stage import run_stage, stage_task
from tasks.running.stage_output import logger
from tasks.runs import releases
from tasks.runs.results import Judgement


@stage_task
def infer(
    plan: RunPlan,
    catalogue: CatalogueRef,
    model: ModelRef,
    compiled: CompileRef | None,
    reuse: Release | None = None,
    after: Judgement | None = None,
) -> InferOutcome:
    """Embed every item with the model of the items; partitions of an earlier attempt are kept.

    Args:
        reuse: release of the same model; unchanged items keep its vectors. Of a model that was trained on queries alone
            it is the release that they were trained for.
        after: orders the stages.
    """
    store = open_store(plan.workspace)
    if model.items is not None and reuse is None:
        trained_for = chosen_release(store, plan.run_key)
        reuse = releases.read(store, trained_for.number) if trained_for is not None else None
    inputs = InferInputs(
        catalogue=catalogue,
        model=model.of_items,
        reuse=reuse.vectors_prefix if reuse is not None else None,
        reuse_sha256=reuse.vectors_sha256 if reuse is not None else None,
        turn=releases.last(store) if reuse is not None else 0,
        compiled=compiled,
    )
    # Over another release the same items lie in other files, for example after a rollback.
    over = inputs.vectors if reuse is None else f"{inputs.vectors}-over-{reuse.number}"
    free = next_folder(store, over, ".")
    if free != inputs.vectors:
        inputs = inputs.model_copy(update={"folder": free.rpartition("/")[2]})
    return run_stage(plan, inputs, InferOutcome)


def infer_to_judge(
    plan: RunPlan, catalogue: CatalogueRef, model: ModelRef, compiled: CompileRef | None
) -> InferOutcome | None:
    """Return the vectors of an unjudged model, for its comparison with released models in a large catalogue.

    An accepted model's vectors are then released, so they are made once. None: the catalogue is small, so evaluate
    measures all of it; or the model gives no usable vectors, and its gates report that. A model that was trained on
    queries alone has most of its vectors already.
    """
    if catalogue.items <= plan.config.evaluate.corpus_items and model.items is None:
        return None
    try:
        return infer(plan, catalogue, model, compiled)
    except CodeError as error:
        logger().warning("the model is judged without its vectors: %s", error)
        return None

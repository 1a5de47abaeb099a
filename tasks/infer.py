"""Stage infer, control side: a vector for every item of a catalogue, by one model."""

from tasks.contracts.jobs import InferInputs
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.references import CatalogueRef, CompileRef, ModelRef
from tasks.contracts.runs import RunPlan
from tasks.running.stage import run_stage, stage_task
from tasks.runs.results import Judgement


@stage_task
def infer(
    plan: RunPlan,
    catalogue: CatalogueRef,
    model: ModelRef,
    compiled: CompileRef | None,
    reuse: str | None = None,
    after: Judgement | None = None,
) -> InferOutcome:
    """Make a vector for every item; partitions that an earlier attempt made are kept.

    Args:
        reuse: folder of earlier vectors of the same model; those of unchanged items are taken from there.
        after: orders the stages.
    """
    return run_stage(plan, InferInputs(catalogue=catalogue, model=model, reuse=reuse, compiled=compiled), InferOutcome)

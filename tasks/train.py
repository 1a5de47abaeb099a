"""Stage train, control side: the lineage's next completed checkpoint."""

from infra.store.factory import open_store
from tasks.contracts.jobs import MinedRelease, TrainInputs
from tasks.contracts.outcomes import TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.references import ModelRef
from tasks.contracts.runs import RunPlan
from tasks.planning.start import item_side, mined_release
from tasks.running.stage import run_stage, stage_task
from tasks.running.stage_output import logger


@stage_task
def train(plan: RunPlan, validated: ValidateOutcome, warm: WarmupOutcome) -> TrainOutcome:
    """Train the run's spans from the plan's parent, with warmup's compiled graphs.

    Each attempt resumes from the last checkpoint of the attempt before it.
    """
    mined = mined_release(open_store(plan.workspace), plan)
    outcome = run_stage(plan, inputs_of(plan, validated, warm, mined), TrainOutcome)
    for use in (outcome.communication, outcome.learning_rate):
        if use is not None and use.warning:
            logger().warning("%s", use.warning)
    return outcome


def inputs_of(
    plan: RunPlan, validated: ValidateOutcome, warm: WarmupOutcome, mined: MinedRelease | None = None
) -> TrainInputs:
    """Return the inputs of a run's training, which mines no hard negatives without `mined`."""
    return TrainInputs(
        rows=validated.rows,
        history=plan.history,
        parent=plan.parent,
        compiled=warm.compiled,
        mined=mined,
        golden=validated.golden,
        items=item_side(open_store(plan.workspace), plan),
        positives=validated.positives,
        replayed=validated.replayed,
    )


def model_of(trained: TrainOutcome) -> ModelRef:
    """Return the model version of a training."""
    return ModelRef(version=trained.model_version, checkpoint=trained.checkpoint, items=trained.items)

"""The training of one side of a comparison, whose weights are deleted at once. The ledger records its attempts."""

from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.kinds import lineage_folder
from tasks.contracts.outcomes import TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.runs import RunPlan
from tasks.running.stage import run_stage, stage_task


@stage_task
def train(plan: RunPlan, validated: ValidateOutcome, warm: WarmupOutcome) -> TrainOutcome:
    """Train one side from the plan's parent; return its losses and holdout curve.

    No run continues from the checkpoint, which is three times the size of the model. It is deleted as soon as the
    result is recorded, so only one side at a time needs disk. A side with a result is not trained again.
    """
    inputs = TrainInputs(
        rows=validated.rows,
        history=plan.history,
        parent=plan.parent,
        compiled=warm.compiled,
        golden=validated.golden,
    )
    outcome = run_stage(plan, inputs, TrainOutcome, outputs_stay=False)
    drop_checkpoints(open_store(plan.workspace), plan)
    return outcome


def drop_checkpoints(store: Store, side: RunPlan) -> None:
    """Delete the checkpoints of one side; its result keeps the measurements."""
    store.delete(lineage_folder(side.config.lineage))

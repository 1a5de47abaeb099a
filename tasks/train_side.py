"""Stage train for a parity comparison, control side: only what training measures is kept, not what it makes."""

from __future__ import annotations

from infra.store import open_store
from tasks.contracts import RunPlan, TrainInputs, TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.sides import drop_checkpoints
from tasks.stage import run_stage, stage_task


@stage_task
def train(plan: RunPlan, validated: ValidateOutcome, warm: WarmupOutcome) -> TrainOutcome:
    """Losses and holdout curve of one side, trained from the plan's parent.

    Its checkpoint, with the optimiser's state three times the size of the model, is deleted as soon as the result is
    on record: nothing continues from it, and a disk filled by comparisons would stop the runs that matter. So disk is
    needed for one side at a time, and a side that was trained before is not trained again.
    """
    inputs = TrainInputs(rows=validated.rows, history=plan.history, parent=plan.parent, compiled=warm.compiled)
    outcome = run_stage(plan, inputs, TrainOutcome, workers=plan.config.train.workers, outputs_stay=False)
    drop_checkpoints(open_store(plan.workspace), plan)
    return outcome

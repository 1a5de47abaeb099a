"""Stage train, control side: the lineage's next completed checkpoint."""

from __future__ import annotations

from tasks.contracts import ModelRef, RunPlan, TrainInputs, TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.stage import run_stage, stage_task


@stage_task
def train(plan: RunPlan, validated: ValidateOutcome, warm: WarmupOutcome) -> TrainOutcome:
    """The weights after the run's spans, trained on from the plan's parent, with the graphs that warmup compiled.

    Every attempt goes on from the last checkpoint that the one before left.
    """
    inputs = TrainInputs(rows=validated.rows, history=plan.history, parent=plan.parent, compiled=warm.compiled)
    return run_stage(plan, inputs, TrainOutcome, workers=plan.config.train.workers)


def model_of(trained: TrainOutcome) -> ModelRef:
    """The model version that a training made."""
    return ModelRef(version=trained.model_version, checkpoint=trained.checkpoint)

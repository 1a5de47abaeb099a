"""Stage train, control side: the lineage's next completed checkpoint."""

from __future__ import annotations

from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.references import ModelRef
from tasks.contracts.runs import RunPlan
from tasks.running.stage import run_stage, stage_task


@stage_task
def train(plan: RunPlan, validated: ValidateOutcome, warm: WarmupOutcome) -> TrainOutcome:
    """The weights after the run's spans, trained on from the plan's parent, with the graphs that warmup compiled.

    Every attempt goes on from the last checkpoint that the one before left.
    """
    inputs = TrainInputs(rows=validated.rows, history=plan.history, parent=plan.parent, compiled=warm.compiled)
    return run_stage(plan, inputs, TrainOutcome)


def model_of(trained: TrainOutcome) -> ModelRef:
    """The model version that a training made."""
    return ModelRef(version=trained.model_version, checkpoint=trained.checkpoint)

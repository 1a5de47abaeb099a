"""Stage infer, control side: a vector for every item of the catalogue, by the evaluated model."""

from tasks.contracts.jobs import InferInputs
from tasks.contracts.outcomes import InferOutcome, TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.runs import RunPlan
from tasks.running.stage import run_stage, stage_task
from tasks.runs.results import Judgement
from tasks.train import model_of
from tasks.validate import catalogue_of


@stage_task
def infer(
    plan: RunPlan, validated: ValidateOutcome, warm: WarmupOutcome, trained: TrainOutcome, after: Judgement | None
) -> InferOutcome:
    """Make a vector for every item; partitions that an earlier attempt made are kept. `after` orders the stages."""
    inputs = InferInputs(catalogue=catalogue_of(plan, validated), model=model_of(trained), compiled=warm.compiled)
    return run_stage(plan, inputs, InferOutcome)

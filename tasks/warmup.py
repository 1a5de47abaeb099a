"""Stage warmup, control side: try the training step and the embedding before hours of training."""

from infra.store.factory import open_store
from tasks.contracts.jobs import WarmupInputs
from tasks.contracts.outcomes import HealthOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.runs import RunPlan
from tasks.planning.start import item_side, mined_release
from tasks.running.stage import run_stage, stage_task


@stage_task
def warmup(plan: RunPlan, validated: ValidateOutcome, after: HealthOutcome) -> WarmupOutcome:
    """Try every shape on the run's own rows; return each one's seconds. `after` orders the stages.

    Raises:
        OutOfMemoryError: a shape does not fit.
        CompileError: a graph did not compile.
    """
    store = open_store(plan.workspace)
    inputs = WarmupInputs(
        rows=validated.rows, parent=plan.parent, mined=mined_release(store, plan), items=item_side(store, plan)
    )
    return run_stage(plan, inputs, WarmupOutcome)

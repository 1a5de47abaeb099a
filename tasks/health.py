"""Stage health, control side: check that the training's workers compute and communicate correctly."""

from tasks.contracts.jobs import HealthInputs
from tasks.contracts.outcomes import HealthOutcome, ValidateOutcome
from tasks.contracts.runs import RunPlan
from tasks.running.stage import run_stage, stage_task, warn_of


@stage_task
def health(plan: RunPlan, after: ValidateOutcome) -> HealthOutcome:
    """Check as many workers as the training has; return their measurements. `after` orders the stages.

    Raises:
        HostError: a worker computes wrong results, is too slow or too small.
    """
    outcome = run_stage(plan, HealthInputs(), HealthOutcome)
    warn_of(outcome.checks)
    return outcome

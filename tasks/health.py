"""Stage health, control side: the workers that will train prove first that they compute and communicate right."""

from tasks.contracts.jobs import HealthInputs
from tasks.contracts.outcomes import HealthOutcome, ValidateOutcome
from tasks.contracts.runs import RunPlan
from tasks.running.stage import run_stage, stage_task, warn_of


@stage_task
def health(plan: RunPlan, after: ValidateOutcome) -> HealthOutcome:
    """Check as many workers as will train; return what they measured. `after` orders the stages.

    Raises:
        HostError: a worker computes wrong, is too slow or too small.
    """
    outcome = run_stage(plan, HealthInputs(), HealthOutcome)
    warn_of(outcome.checks)
    return outcome

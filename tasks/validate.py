"""Stage validate, control side: the rows of the run's spans, checked, with the bad ones set apart."""

from tasks.contracts.jobs import ValidateInputs
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.runs import RunPlan
from tasks.running.stage import run_stage, stage_task, warn_of


@stage_task
def validate(plan: RunPlan) -> ValidateOutcome:
    """Check the rows of every span of the window, and write the clean ones.

    Raises:
        DataError: a critical check failed; the message has its numbers.
    """
    outcome = run_stage(plan, ValidateInputs(window=plan.window, history=plan.history), ValidateOutcome)
    warn_of(outcome.checks)
    return outcome

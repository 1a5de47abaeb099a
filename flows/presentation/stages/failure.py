"""A failure of any stage: its class, its message, its meaning and its remedy."""

from flows.presentation.model import Command, Section, facts
from flows.presentation.wording import sentence
from tasks.foundation.errors import POLICIES, RUNBOOK, FailureClass


def section(failure: FailureClass, message: str, stage: str, command: str = "") -> Section:
    """Return the failure and its remedy.

    Args:
        stage: the failed stage; empty if no stage had begun.
        command: command that continues the run; empty if unknown.
    """
    policy = POLICIES[failure]
    cancelled = failure is FailureClass.CANCELLED
    where = stage.capitalize() or "The run"
    again = "Retry on the flow run's page, or repeat the command that began it; finished stages are not repeated."
    if cancelled:
        retries = "Nothing has to be repaired."
    elif policy.transient:
        retries = "It usually passes by itself, and is tried again as often as retry.attempts allows."
    else:
        retries = "It would fail again until its cause is repaired, so it is not tried again."
    rows = (
        ("class", f"{failure}, exit code {policy.exit_code}"),
        ("retries", retries),
        ("continue", again),
        ("more", f"{RUNBOOK}, {failure}"),
    )
    return Section(
        f"{where} was cancelled" if cancelled else f"{where} failed with {failure}",
        (sentence(policy.meaning),),
        id="failure",
        mood="going" if cancelled else "bad",
        quote=message,
        tables=(facts(rows),),
        commands=(Command("To continue from here, run the span again:", tuple(command.splitlines())),)
        if command
        else (),
    )

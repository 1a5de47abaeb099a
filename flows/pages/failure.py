"""The page of an attempt that failed, whatever the stage: its class, its message, what it found, what to do."""

from __future__ import annotations

from flows.pages.account import foot, head
from flows.pages.markdown import table
from infra.store import Store
from tasks.contracts import RunPlan, Stage
from tasks.errors import RUNBOOK, StageError


def page(store: Store, plan: RunPlan, stage: Stage, error: StageError) -> str:
    """Markdown. Raises StoreError if the ledger, or what the attempt found, is not readable."""
    sentence = f"{error.policy.meaning[0].upper()}{error.policy.meaning[1:]}."
    if error.policy.transient:
        advice = "It passes by itself as a rule, and is tried again as often as retry.attempts allows."
    else:
        advice = "It comes again until what the message names is mended, so it is not tried again."
    again = "Retry on the flow run's page, or the command that began it; what is done is not done again."
    lines = head(plan, f"{stage.value.capitalize()} failed with {error.failure}", sentence)
    lines += table(
        ("", "failure"),
        [("message", str(error)), ("retries", advice), ("go on", again), ("more", f"{RUNBOOK}, {error.failure}")],
    )
    return "\n".join([*lines, *foot(store, plan, stage, {})])

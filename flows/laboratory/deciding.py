"""The decision of a scheduled run: its plan, or the span waits for the next one."""

from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.states import Completed

from configs.schema.config import Config
from flows.presentation.markdown import page
from flows.presentation.run.planned import decision_section
from flows.refresh import refresh_with
from infra.store.base import Store
from tasks.contracts.runs import RunPlan
from tasks.laboratory import weekly
from tasks.planning.decisions import Action, Decision, keep
from tasks.planning.next_run import plan_run
from tasks.planning.start import consumed, find_start, on_active
from tasks.running.stage_output import logger


def follow_decision(store: Store, config: Config, plan: RunPlan) -> RunPlan | Any:
    """Decide about a planned run, and write the decision down.

    Returns:
        The plan, with more epochs for a longer training; or the state Postponed, after the refresh if one was decided.

    Raises:
        Conflict: another process refreshes this lineage.
        StageError: a stage of the refresh failed; then nothing is written down, and the next run decides again.
    """
    if plan.span in consumed(find_start(store, on_active(store, config)).head):
        return plan  # it is trained, and goes on
    decision = weekly.decide(store, config, plan.span.name)
    if decision.taken.waits:
        return _let_wait(store, config, plan, decision)
    decision = keep(store, decision)
    _show(plan, decision)
    logger().info("decided to %s %s: %s", decision.taken, plan.span.name, decision.why)
    return plan_run(store, config, plan.span.name) if decision.taken is Action.longer else plan


def _let_wait(store: Store, config: Config, plan: RunPlan, decision: Decision) -> Any:
    done = refresh_with(store, config, plan.window) if decision.taken is Action.refresh else ""
    decision = keep(store, decision)
    _show(plan, decision)
    words = f"{plan.span.name} waits for the next span: {decision.why} {done}".rstrip()
    logger().info("%s", words)
    return Completed(name="Postponed", message=words, data=None)


def _show(plan: RunPlan, decision: Decision) -> None:
    """Make the page of the decision in the current flow run; log a warning if that fails."""
    try:
        create_markdown_artifact(
            key=f"decision-{decision.lineage}",
            markdown=page(decision_section(decision), plan.workspace),
            description=f"span {plan.span.name}: {decision.taken}",
        )
    except Exception as error:  # a page must not stop a run
        logger().warning("the page of the decision could not be made: %s", error)

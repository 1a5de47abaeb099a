"""Announce the plan of a run, and after the last stage or a rollback the fate of the model.

An announcement of a model's fate never fails the caller.
"""

import contextlib
from collections.abc import Iterable, Iterator

from flows.presentation.wording import plural
from flows.running.events import send_once
from flows.running.release_events import made, near_budget, rejected, rolled_back
from infra.store.base import Store
from tasks.contracts.runs import Release, RunPlan
from tasks.monitoring.budgets import Budget
from tasks.planning.start import unfinished_before
from tasks.running.stage_output import logger
from tasks.runs import releases
from tasks.runs.plan import listed, read_plan
from tasks.runs.results import Judgement, Refusal


def announce_plan(store: Store, plan: RunPlan) -> None:
    """Log the run's spans and its start, and warn of an unfinished run before it."""
    start = f"from step {plan.parent.step}" if plan.parent else "from nothing"
    if plan.branch is not None:
        again = listed([span.name for span in plan.branch.again])
        start = f"{start}, the last accepted checkpoint, since the model of {again} was rejected,"
    count = plural(len(plan.window), "span")
    logger().info("run %s: lineage %s %s, %s up to %s", plan.run_key, plan.config.lineage, start, count, plan.span.name)
    if unfinished := unfinished_before(store, plan):
        logger().warning(
            "span %s was trained but never released or rejected; to finish it, run it again: --span %s",
            unfinished,
            unfinished,
        )


def announce_budgets(store: Store, plan: RunPlan, budgets: Iterable[Budget]) -> None:
    """Log budgets that are nearly used or can't be checked; send the event of each that is nearly used, once."""
    for each in budgets:
        logger().warning("%s", each.sentence)
        if each.near:
            with _only_logged(f"the budget of {each.of} {each.name}"):
                send_once(store, near_budget(plan, each))


def announce_release(store: Store, plan: RunPlan, release: Release) -> None:
    """Send the event of a release, once for each release."""
    with _only_logged(f"release {release.number}"):
        serving = releases.current(store)
        send_once(store, made(release, serving.number if serving else None, plan.config.lineage))


def announce_rejection(store: Store, plan: RunPlan, judged: Judgement | Refusal, following: str = "") -> None:
    """Send the event of a refused model, once for each run; `following` is a sentence about the next span's start."""
    if following:
        logger().warning("%s was rejected. %s", plan.span.name, following)
    with _only_logged(f"the rejection of {plan.span.name}"):
        send_once(store, rejected(plan, judged, following))


def announce_rollback(store: Store, release: Release, before: Release | None) -> None:
    """Send the event of a rollback from a command, each time."""
    with _only_logged(f"the rollback to release {release.number}"):
        send_once(store, rolled_back(release, before, read_plan(store, release.run_key).config.lineage))


@contextlib.contextmanager
def _only_logged(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        logger().warning("%s is not announced: %s", what, error)

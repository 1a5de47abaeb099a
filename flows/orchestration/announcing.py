"""Announce the plan of a run, and after the last stage or a rollback the fate of the model.

An announcement of a model's fate never fails the caller. Waiting releases, of a killed run or made while releases were
held, are decided and announced too.
"""

import contextlib
from collections.abc import Iterable, Iterator

from configs.schema.config import Config
from flows.orchestration.events import (
    job_beyond_plan,
    model_rejected,
    near_budget,
    release_made,
    release_rolled_back,
    send_once,
)
from flows.presentation.run.report import write_run_report
from infra.compute.batch.listing import LiveJob
from infra.store.base import Store
from tasks.contracts.runs import Release, RunPlan
from tasks.foundation.nouns import plural
from tasks.monitoring.spending import Budget
from tasks.planning.start import unfinished_before
from tasks.publish import publish_release
from tasks.running.stage_output import logger
from tasks.runs import releases
from tasks.runs.adding_releases import settle
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


def announce_long_jobs(store: Store, lineage: str, jobs: Iterable[LiveJob]) -> None:
    """Log jobs beyond their plan, and send the event of each, once."""
    for each in jobs:
        if each.beyond:
            logger().warning("%s", each.sentence)
            with _only_logged(f"job {each.job}"):
                send_once(store, job_beyond_plan(lineage, each))


def announce_release(store: Store, plan: RunPlan, release: Release) -> None:
    """Send the event of a release, once for each release."""
    with _only_logged(f"release {release.number}"):
        serving = releases.current(store)
        send_once(store, release_made(release, serving.number if serving else None, plan.config.lineage))


def announce_rejection(store: Store, plan: RunPlan, judged: Judgement | Refusal, following: str = "") -> None:
    """Send the event of a refused model, once for each run; `following` is a sentence about the next span's start."""
    if following:
        logger().warning("%s was rejected. %s", plan.span.name, following)
    with _only_logged(f"the rejection of {plan.span.name}"):
        send_once(store, model_rejected(plan, judged, following))


def announce_rollback(store: Store, release: Release, before: Release | None) -> None:
    """Send the event of a rollback from a command, each time."""
    with _only_logged(f"the rollback to release {release.number}"):
        send_once(store, release_rolled_back(release, before, read_plan(store, release.run_key).config.lineage))


@contextlib.contextmanager
def _only_logged(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        logger().warning("%s is not announced: %s", what, error)


def take_up_undecided(store: Store, config: Config) -> None:
    """Decide waiting releases; announce the one that becomes current, and publish it to the targets of `config`.

    Nothing is decided while releases are held.

    Raises:
        StageError: a target failed, with the class of the first one; or a record is not readable.
    """
    made = settle(store)
    if made is None:
        return
    logger().warning("release %d of span %s waited for a decision, and is current now", made.number, made.span.name)
    plan = read_plan(store, made.run_key)
    plan = plan.model_copy(update={"config": plan.config.model_copy(update={"publish": config.publish})})
    announce_release(store, plan, made)
    publish_release(store, plan, made)
    if made.refreshed is None:
        write_run_report(store, made.run_key)  # it said that the release waits

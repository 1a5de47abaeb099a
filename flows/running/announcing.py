"""Announces what became of a model, after the last stage of a flow or after a rollback. It never fails the caller."""

import contextlib
from collections.abc import Iterator

from flows.running.events import send_now, send_once
from flows.running.release_events import made, rejected, rolled_back
from infra.store.base import Store
from tasks.contracts.runs import Release, RunPlan
from tasks.running.stage_output import logger
from tasks.runs import releases
from tasks.runs.plan import read_plan
from tasks.runs.results import Judgement, Refusal


def announce_release(store: Store, plan: RunPlan, release: Release) -> None:
    """Send the event of a release, once for each release."""
    with _only_logged(f"release {release.number}"):
        serving = releases.current(store)
        send_once(store, made(release, serving.number if serving else None, plan.config.lineage))


def announce_rejection(store: Store, plan: RunPlan, judged: Judgement | Refusal) -> None:
    """Send the event of a refused model, once for each run."""
    with _only_logged(f"the rejection of {plan.span.name}"):
        send_once(store, rejected(plan, judged))


def announce_rollback(store: Store, release: Release, previous: int | None) -> None:
    """Send the event of a rollback from a command, and wait until it has left."""
    with _only_logged(f"the rollback to release {release.number}"):
        send_now(rolled_back(release, previous, read_plan(store, release.run_key).config.lineage))


@contextlib.contextmanager
def _only_logged(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        logger().warning("%s is not announced: %s", what, error)

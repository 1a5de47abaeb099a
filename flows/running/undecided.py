"""Decide waiting releases: of a killed run, or made while releases were held."""

from configs.schema.config import Config
from flows.presentation.run.report import write_run_report
from flows.running.announcing import announce_release
from infra.store.base import Store
from tasks.publish import publish_release
from tasks.running.stage_output import logger
from tasks.runs.adding_releases import settle
from tasks.runs.plan import read_plan


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

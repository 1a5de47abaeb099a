"""The refresh between trainings: embed new and changed items with the released model, in a new release."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from prefect import flow
from prefect.states import Completed

from configs.load import load_config
from configs.schema.config import Config
from flows.orchestration.announcing import announce_budgets, announce_rejection, announce_release, take_up_undecided
from flows.orchestration.cancelling import cancellable, end_jobs
from flows.orchestration.janitors import end_dead_janitors, newest_only
from flows.orchestration.parameters import ConfigFile, Overrides, Workspace
from flows.orchestration.recorded_invocation import sum_up_refreshes
from flows.orchestration.run_end import show_rejection
from flows.presentation.run.pages import make_stage_page
from infra.store.base import Conflict, Store
from infra.store.factory import open_store, require_fit
from tasks.contracts.kinds import lineage_lock
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import Release
from tasks.foundation.nouns import plural
from tasks.infer import infer
from tasks.monitoring.spending import OverBudget, require_budget
from tasks.publish import publish_release
from tasks.release import release
from tasks.running.context import override_context
from tasks.running.lineage_lock import hold_lineage
from tasks.running.stage_output import logger
from tasks.runs import releases
from tasks.runs.catalogues import Refresh, close_left, plan_refresh
from tasks.runs.holds import why_waiting
from tasks.runs.plan import NothingToDo, save_plan
from tasks.runs.results import Refusal
from tasks.validate import catalogue_of, validate


@flow(name="refresh", flow_run_name="refresh", on_cancellation=[end_jobs], on_completion=[show_rejection])
@cancellable
@newest_only
def refresh(workspace: Workspace, config_file: ConfigFile = "", overrides: Overrides = ()) -> Release | None:
    """Embed new and changed items with the released model, drop deleted ones, and release the result.

    Items come from validated rows and from item feeds. Unchanged items keep their vectors. A training may run at the
    same time. Without anything to do, or while another refresh runs, the flow run ends as NothingToDo. If a gate of
    `release` refuses the result, it ends as Rejected, and the current release stays. While a person holds releases, it
    ends at once as Held.

    Args:
        workspace: storage of spans, runs and releases; a local directory or s3://bucket/prefix.
        config_file: a YAML file with settings that override base.yaml; its path on the worker.
        overrides: single settings over both, as in infer.workers=4.

    Raises:
        StageError: a stage failed, with its failure class; or CONFIG, its planned dollars exceed a budget.
    """
    end_dead_janitors()  # a refresh is in another queue, so dead janitors do not block it
    config, store = load_config(config_file, overrides), open_store(workspace)
    require_fit(store)
    if (hold := releases.hold_of(store)) is not None:
        waits: Any = Completed(name="Held", message=hold.sentence, data=None)
        return waits
    take_up_undecided(store, config)
    with contextlib.ExitStack() as held:
        try:
            planned = held.enter_context(_planned(store, config))
        except (NothingToDo, Conflict) as reason:
            nothing: Any = Completed(name="NothingToDo", message=str(reason), data=None)  # the caller gets the data
            return nothing
        with override_context(page_maker=make_stage_page):
            try:
                made = _carry_out(store, planned)
            finally:
                sum_up_refreshes(store)
        if isinstance(made, Release) and (why := why_waiting(store, made)):
            late: Any = Completed(name="Held", message=why, data=None)
            return late
        if isinstance(made, Release):
            words = f"Released as {made.number}, a refresh of {made.refreshed} with {plural(made.vectors, 'vector')}"
            released: Any = Completed(name="Released", message=words, data=made)
            return released
        rejected: Any = Completed(name="Rejected", message=made.why, data=made)
        return rejected


def refresh_after_rejection(store: Store, config: Config, trained_on: str) -> None:
    """After a rejection, embed the new items with the current release's model, in the current flow run.

    Args:
        trained_on: the lineage or branch of the rejected model.

    Raises:
        Conflict: another process refreshes this lineage.
        StageError: a stage failed.
    """
    if (hold := releases.hold_of(store)) is not None:
        logger().warning("the items of the rejected model's rows wait. %s", hold.sentence)
        return
    with contextlib.ExitStack() as held:
        try:
            planned = held.enter_context(_planned(store, config, trained_on))
        except NothingToDo:  # no champion, or done by an earlier invocation
            return
        except OverBudget as reason:
            logger().warning("the items of the rejected model's rows wait: %s", reason)
            return
        _carry_out(store, planned)


def refresh_with(store: Store, config: Config, waiting: Sequence[SpanRef]) -> str:
    """Embed the items of spans that wait for their training, in the current flow run; return a sentence about it.

    Raises:
        Conflict: another process refreshes this lineage.
        StageError: a stage failed, for example because the rows of a span can't be used.
    """
    if (hold := releases.hold_of(store)) is not None:
        return f"Its items wait too. {hold.sentence}"
    with contextlib.ExitStack() as held, override_context(page_maker=make_stage_page):
        try:
            planned = held.enter_context(_planned(store, config, waiting=waiting))
        except NothingToDo as reason:
            return f"Its items need no refresh: {reason}."
        except OverBudget as reason:
            return f"Its items wait too: {reason}."
        made = _carry_out(store, planned)
    sum_up_refreshes(store)
    if isinstance(made, Release) and (why := why_waiting(store, made)):
        return f"Its items wait too. {why}"
    if isinstance(made, Release):
        return f"Refreshed as release {made.number}, with {plural(made.vectors, 'vector')}."
    return f"The refresh was rejected, so the current release stays: {made.why}"


@contextlib.contextmanager
def _planned(
    store: Store, config: Config, trained_on: str | None = None, waiting: Sequence[SpanRef] = ()
) -> Iterator[Refresh]:
    """Plan a refresh, and lock out other refreshes of the lineage inside the block.

    Raises:
        NothingToDo: the release has all items.
        Conflict: another process refreshes this lineage.
        OverBudget: the refresh is planned to cost more than is left of a budget.
    """
    with hold_lineage(store, lineage_lock(config.lineage, "refresh"), logger().warning):
        planned = plan_refresh(store, config, trained_on, waiting)
        close_left(store, planned.plan)
        announce_budgets(store, planned.plan, require_budget(store, planned.plan))
        yield planned


def _carry_out(store: Store, planned: Refresh) -> Release | Refusal:
    plan, current = planned
    save_plan(store, plan)
    logger().info("release %d is brought up to date by run %s", current.number, plan.run_key)
    catalogue = catalogue_of(plan, validate(plan))
    inferred = infer(plan, catalogue, current.model, None, reuse=current)
    made = release(plan, current.model, inferred, current, current.rows)
    if isinstance(made, Release) and (why := why_waiting(store, made)):
        logger().warning("%s", why)
    elif isinstance(made, Release):
        announce_release(store, plan, made)
        publish_release(store, plan, made)
    else:
        announce_rejection(store, plan, made)
    return made

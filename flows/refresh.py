"""Between trainings: vectors of new and changed items by the released model, in a release of its own."""

import contextlib
from collections.abc import Sequence
from typing import Any

from prefect import flow
from prefect.states import Completed

from configs.load import load_config
from configs.schema.config import Config
from flows.presentation.run.publish import publish
from flows.running.cancelling import cancellable, end_jobs
from flows.running.parameters import ConfigFile, Overrides, Workspace
from infra.store.base import Conflict, Store
from infra.store.factory import open_store
from tasks.contracts.references import RowsRef
from tasks.contracts.runs import Release, RunPlan
from tasks.infer import infer
from tasks.release import release
from tasks.running.context import within
from tasks.running.lineage_lock import hold_lineage
from tasks.running.stage_output import logger
from tasks.runs.plan import NothingToDo, save_plan
from tasks.runs.refreshes import plan_refresh
from tasks.validate import catalogue_of, validate


@flow(name="refresh", flow_run_name="refresh", on_cancellation=[end_jobs])
@cancellable
def refresh(workspace: Workspace, config_file: ConfigFile = "", overrides: Overrides = ()) -> Release | None:
    """Embed new and changed items with the released model, drop deleted ones, and release the result.

    Items come from rows that were validated and from item feeds. Unchanged items keep their vectors. A training may run
    at the same time. Without anything to do, or while another refresh runs, the flow run ends as NothingToDo.

    Args:
        workspace: where spans, runs and releases are stored; a local directory or s3://bucket/prefix.
        config_file: a YAML file with settings that replace those of base.yaml; its path on the worker.
        overrides: single settings over both, as in infer.workers=4.

    Raises:
        StageError: a stage failed; its class says why.
    """
    config, store = load_config(config_file, overrides), open_store(workspace)
    try:
        with within(publisher=publish):
            return refresh_items(store, config)
    except (NothingToDo, Conflict) as reason:
        nothing: Any = Completed(name="NothingToDo", message=str(reason), data=None)  # the caller gets the data
        return nothing


def refresh_after_rejection(store: Store, config: Config, rows: Sequence[RowsRef]) -> None:
    """Give the items of a rejected run's rows vectors by the champion. Raises as `refresh_items`."""
    with contextlib.suppress(NothingToDo):  # no champion, or done by an earlier invocation
        refresh_items(store, config, rows)


def refresh_items(store: Store, config: Config, more: Sequence[RowsRef] = ()) -> Release:
    """Do it in the current flow run.

    Args:
        more: validated rows of a run whose model was rejected.

    Raises:
        NothingToDo: the current release holds every item, or there is none.
        Conflict: another process refreshes this lineage.
        StageError: a stage failed.
    """
    with hold_lineage(store, f"lineages/{config.lineage}.refresh", logger().warning):
        plan, current = plan_refresh(store, config, more)
        save_plan(store, plan)
        return _refresh(plan, current)


def _refresh(plan: RunPlan, current: Release) -> Release:
    logger().info("release %d is brought up to date by run %s", current.number, plan.run_key)
    catalogue = catalogue_of(plan, validate(plan))
    reuse = current.vectors_prefix if current.catalogue is not None else None
    inferred = infer(plan, catalogue, current.model, None, reuse=reuse)
    return release(plan, current.model, inferred, current.metrics, refreshed=current.number)

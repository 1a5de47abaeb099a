"""The prune as a scheduled flow: list what nothing needs any more, and delete it if the settings say so.

Alone, as the entry point of a deployment.
"""

import contextlib
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.states import Completed

import tasks.prune.prune
from configs.load import load_config
from flows.orchestration.janitors import LONGEST_SECONDS, newest_only
from flows.orchestration.parameters import ConfigFile, Overrides, Workspace
from flows.presentation import markdown
from flows.presentation.pruning import section, sentence
from infra.store.base import Conflict
from infra.store.factory import open_store
from tasks.contracts.pruning import PrunePlan
from tasks.running.stage_output import logger
from tasks.runs.audit import audited


@flow(name="prune", flow_run_name="prune", timeout_seconds=LONGEST_SECONDS)
@newest_only
def prune(workspace: Workspace, config_file: ConfigFile = "", overrides: Overrides = ()) -> PrunePlan | None:
    """Delete models, vectors, catalogues and checkpoints that nothing needs any more, or list them.

    It only lists them, and ends as Listed, until the setting prune.delete is true. While a run, a refresh or a backfill
    works on the workspace it ends as Busy: its schedule tries again the same night.

    Args:
        workspace: storage of spans, runs and releases; a local directory or s3://bucket/prefix.
        config_file: a YAML file with settings that override base.yaml; its path on the worker.
        overrides: single settings over both, as in prune.delete=true.

    Raises:
        ConfigError: the settings are wrong.
        StoreError: a record that decides on the needed folders is not readable; nothing was deleted.
    """
    policy, store = load_config(config_file, overrides).prune, open_store(workspace)
    try:
        with audited(store, "prune") if policy.delete else contextlib.nullcontext():
            plan = tasks.prune.prune.prune(store, policy, not policy.delete, logger().warning)
    except Conflict as busy:
        later: Any = Completed(name="Busy", message=str(busy), data=None)  # the caller gets the data
        return later
    create_markdown_artifact(key="prune", markdown=markdown.page(section(plan), store.uri), description=store.uri)
    way = "" if plan.deleted else "; to delete such folders each night, set prune.delete to true"
    done: Any = Completed(name="Completed" if plan.deleted else "Listed", message=f"{sentence(plan)}{way}", data=plan)
    return done

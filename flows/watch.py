"""The watch, a flow for a schedule: how fresh the vectors are, what is wrong, and a run for spans that were missed.

It trains nothing itself: the deployed pipeline runs the missed spans.
"""

import datetime as dt
from typing import Any

from prefect import flow
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Completed

from configs.load import load_config
from flows.running.parameters import ConfigFile, Overrides, Workspace
from flows.watching.events import send_events
from flows.watching.lost_runs import set_lost_runs_crashed
from flows.watching.page import publish
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.data.span_versions import latest_version
from tasks.foundation.clock import now
from tasks.monitoring.freshness import FreshnessReport, freshness
from tasks.running.stage_output import logger

PIPELINE = "pipeline/scheduled"


@flow(name="watch", flow_run_name="freshness")
def watch(
    workspace: Workspace, config_file: ConfigFile = "", overrides: Overrides = (), catch_up: bool = True
) -> FreshnessReport:
    """Report how fresh the released vectors are and which runs are late. Run the spans that were missed.

    Each problem becomes one Prefect event, for automations. A flow run whose process is gone is set to Crashed. If a
    problem is urgent, the watch ends in the state Attention, with the report as its data.

    Args:
        workspace: where spans, runs and releases are stored; a local directory or s3://bucket/prefix.
        config_file: a YAML file with settings that replace those of base.yaml; its path on the worker.
        overrides: single settings over both, as in freshness.target_hours=48.
        catch_up: start one run of the deployed pipeline for the spans that were missed.

    Raises:
        ConfigError, StoreError: as `tasks.monitoring.freshness.freshness`.
    """
    config = load_config(config_file, overrides)
    store = open_store(workspace)
    report = freshness(store, config, dt.datetime.fromisoformat(now()))
    for problem in report.urgent:
        logger().warning("%s Way out: %s", problem.sentence, problem.way_out)
    send_events(store, report)
    started = ""
    if catch_up and report.catch_up is not None:
        settings = {"workspace": workspace, "config_file": config_file, "overrides": list(overrides)}
        started = _catch_up(store, report, {**settings, "scheduled_in": config.schedule.timezone}, report.catch_up)
    publish(report, started)
    set_lost_runs_crashed(store, report)
    name = "Attention" if report.urgent else "Completed"
    completed: Any = Completed(name=name, message=" ".join([report.sentence, started]).strip(), data=report)
    return completed  # the caller gets the data


def _catch_up(store: Store, report: FreshnessReport, parameters: dict[str, Any], span: str) -> str:
    """Start the pipeline up to `span`, once for each version of it, and return a sentence about it."""
    key = f"missed:{report.lineage}:{span}:v{latest_version(store, span)}"
    try:
        run: Any = run_deployment(
            PIPELINE,
            parameters={**parameters, "span": span},
            idempotency_key=key,
            tags=["catch-up", f"lineage:{report.lineage}"],
            timeout=0,
            as_subflow=False,
        )
    except ObjectNotFound:
        by_hand = f"millrace run --span {report.missed[0]}"
        sentence = f"Missed spans wait: no deployment {PIPELINE} (millrace deploy makes it); by hand: {by_hand}"
    except PrefectHTTPStatusError as error:
        sentence = f"Missed spans wait: {PIPELINE} could not be started: {error}"
    else:
        state = run.state.name if run.state else "unknown"
        sentence = f"A run of {PIPELINE} takes {span} and the spans missed before it; it is {state}."
    logger().info("%s", sentence)
    return sentence

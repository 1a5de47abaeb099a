"""The watch, to be deployed on a schedule: how fresh the vectors are, who must know, and what is started because of it.

It trains nothing itself: what was missed is caught up by a run of the deployed pipeline.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Completed

from configs.load import load_config
from flows.lost import set_crashed
from flows.parameters import Overrides, Place, Workspace
from flows.watch_events import announce
from flows.watch_page import publish
from infra.store import Store, open_store
from tasks.catalog import latest_version
from tasks.freshness import FreshnessReport, freshness
from tasks.ledger import now
from tasks.sinks import logger

PIPELINE = "pipeline/scheduled"


@flow(name="watch", flow_run_name="freshness")
def watch(workspace: Workspace, place: Place = "", overrides: Overrides = (), catch_up: bool = True) -> FreshnessReport:
    """Tell how fresh the released vectors are, which runs are late and which spans were missed, and start those.

    A flow run whose process is gone is set to Crashed, or it would show Running for ever.

    Whoever listens to Prefect's events hears of each problem once. Where somebody should look, the flow run ends in
    the state Attention, whose data is the report as well.

    Args:
        workspace: where spans, runs and releases lie; a local directory or s3://bucket/prefix.
        place: path of a YAML file of settings over those of base.yaml, as the worker sees it; may be empty.
        overrides: single settings over both, as in freshness.target_hours=48.
        catch_up: whether to start one run of the deployed pipeline for the spans that were missed.

    Raises:
        ConfigError, StoreError: as `tasks.freshness.freshness`.
    """
    config = load_config(Path(place) if place else None, overrides)
    store = open_store(workspace)
    report = freshness(store, config, dt.datetime.fromisoformat(now()))
    for problem in report.urgent:
        logger().warning("%s Way out: %s", problem.sentence, problem.way_out)
    announce(store, report)
    asked = {"workspace": workspace, "place": place, "overrides": list(overrides)}
    started = _start(store, report, {**asked, "scheduled_in": config.schedule.timezone}) if catch_up else ""
    publish(report, started)
    set_crashed(store, report)
    name = "Attention" if report.urgent else "Completed"
    told: Any = Completed(name=name, message=" ".join([report.sentence, started]).strip(), data=report)
    return told  # the caller gets the data


def _start(store: Store, report: FreshnessReport, parameters: dict[str, Any]) -> str:
    """Start what catches up, and say so; once for a version of a span, however often it is asked for."""
    span = report.catch_up
    if span is None:
        return ""
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
        said = f"There is no deployment {PIPELINE} to catch up with (millrace deploy makes it); by hand: {by_hand}"
    except PrefectHTTPStatusError as error:
        said = f"{PIPELINE} could not be started to catch up: {error}"
    else:
        state = run.state.name if run.state else "unknown"
        said = f"A run of {PIPELINE} catches up with {span} and what was missed before it; it is {state}."
    logger().info("%s", said)
    return said

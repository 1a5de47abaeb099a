"""The watch, a scheduled flow: report the vectors' freshness and problems, and start missed or interrupted runs.

It trains nothing itself: the deployed pipeline does.
"""

import datetime as dt
from typing import Any

from prefect import flow
from prefect.states import Completed

from configs.load import load_config
from flows.orchestration.asking import answer_overdue
from flows.orchestration.catch_up import set_lost_runs_crashed, start_again
from flows.orchestration.janitors import LONGEST_SECONDS, end_dead_janitors, newest_only
from flows.orchestration.parameters import ConfigFile, Overrides, Workspace
from flows.orchestration.watch_findings import publish, send_events
from infra.store.factory import open_store
from tasks.contracts.workspace import METRICS
from tasks.foundation.clock import now
from tasks.monitoring.freshness import FreshnessReport, freshness
from tasks.monitoring.prometheus import metrics_text
from tasks.running.stage_output import logger


@flow(name="watch", flow_run_name="freshness", timeout_seconds=LONGEST_SECONDS)
@newest_only
def watch(
    workspace: Workspace, config_file: ConfigFile = "", overrides: Overrides = (), catch_up: bool = True
) -> FreshnessReport:
    """Report the freshness of the released vectors and late runs. Start missed or interrupted runs.

    The numbers for Prometheus are written to `reports/metrics.prom`. Each problem becomes one Prefect event, for
    automations. A flow run without a process is set to Crashed. If a gate's question got no answer in time, its run is
    resumed, and rejects the model. If a problem is urgent, the watch ends in the state Attention, with the report as
    its data.

    Args:
        workspace: storage of spans, runs and releases; a local directory or s3://bucket/prefix.
        config_file: a YAML file with settings that override base.yaml; its path on the worker.
        overrides: single settings over both, as in freshness.target_hours=48.
        catch_up: start one run of the deployed pipeline for missed spans, or for a run that was lost or had a transient
            failure; at most three times a day.

    Raises:
        ConfigError, StoreError: as `tasks.monitoring.freshness.freshness`.
    """
    end_dead_janitors()
    config = load_config(config_file, overrides)
    store, at = open_store(workspace), dt.datetime.fromisoformat(now())
    report = freshness(store, config, at)
    for problem in report.urgent:
        logger().warning("%s Way out: %s", problem.sentence, problem.way_out)
    set_lost_runs_crashed(store)
    answer_overdue(store, [row.run_key for row in report.spans if row.state == "Unfinished" and row.run_key])
    started = None
    if catch_up and report.catch_up is not None:
        settings = {"workspace": workspace, "config_file": config_file, "overrides": list(overrides)}
        zone = {"scheduled_in": config.schedule.timezone}
        started = start_again(store, report, report.catch_up, {**settings, **zone})
    send_events(store, report, started)
    sentence = started.sentence if started else ""
    publish(report, sentence)
    store.write(METRICS.key(), metrics_text(store, at))  # last: nobody who is on call waits for it
    name = "Attention" if report.urgent else "Completed"
    completed: Any = Completed(name=name, message=" ".join([report.sentence, sentence]).strip(), data=report)
    return completed  # the caller gets the data

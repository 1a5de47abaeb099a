"""The reaper as a flow, to be deployed on a schedule: ends jobs on AWS Batch that nobody waits for."""

from __future__ import annotations

from pathlib import Path

from prefect import flow

import tasks.reap
from configs.load import load_config
from flows.parameters import GraceMinutes, Overrides, Place
from tasks.reap import GRACE_MINUTES, ReapReport
from tasks.sinks import logger


@flow(name="reap", flow_run_name="after {grace_minutes} minutes")
def reap(place: Place = "", overrides: Overrides = (), grace_minutes: GraceMinutes = GRACE_MINUTES) -> ReapReport:
    """End the jobs whose flow run is over or was lost.

    Args:
        place: path of the YAML file of settings whose queues are looked at, as the worker sees it.
        overrides: single settings over it.
        grace_minutes: a job for which nobody has waited for so long is ended; a killed run can be found again before.

    Raises:
        ConfigError, HostError: as `tasks.reap.reap`.
    """
    report = tasks.reap.reap(load_config(Path(place) if place else None, overrides), grace_minutes)
    for job in report.jobs:
        logger().info("%s %s (%s): %s", job.action, job.job, job.name, job.why)
    return report

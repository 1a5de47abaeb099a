"""The reaper as a scheduled flow: end abandoned jobs on AWS Batch, and announce jobs that run beyond their plan.

Alone, as the entry point of a deployment.
"""

from prefect import flow

import infra.compute.batch.end_jobs
import infra.compute.batch.listing
from configs.load import load_config
from flows.orchestration.announcing import announce_long_jobs
from flows.orchestration.janitors import LONGEST_SECONDS, newest_only
from flows.orchestration.parameters import ConfigFile, GraceMinutes, Overrides, Workspace
from infra.compute.batch.end_jobs import GRACE_MINUTES, ReapReport
from infra.store.factory import open_store
from tasks.running.stage_output import logger


@flow(name="reap", flow_run_name="after {grace_minutes} minutes", timeout_seconds=LONGEST_SECONDS)
@newest_only
def reap(
    workspace: Workspace,
    config_file: ConfigFile = "",
    overrides: Overrides = (),
    grace_minutes: GraceMinutes = GRACE_MINUTES,
) -> ReapReport:
    """End jobs on AWS Batch whose flow run has ended or was lost; send an event of each that runs beyond its plan.

    Args:
        workspace: the workspace of the jobs; a local directory or s3://bucket/prefix.
        config_file: a YAML file with settings that override base.yaml; its path on the worker.
        overrides: single settings over both, as in batch.accelerator_queue=trainium.
        grace_minutes: minutes without a waiting process after which a job is ended; until then a new run can take it.

    Raises:
        ConfigError, HostError: as `infra.compute.batch.end_jobs.reap`.
    """
    store, config = open_store(workspace), load_config(config_file, overrides)
    report = infra.compute.batch.end_jobs.reap(store, config, grace_minutes)
    for job in report.jobs:
        logger().info("%s %s (%s): %s", job.action, job.job, job.name, job.why)
    if any(job.action == "kept" for job in report.jobs):
        announce_long_jobs(store, config.lineage, infra.compute.batch.listing.list_jobs(store, config).jobs)
    return report

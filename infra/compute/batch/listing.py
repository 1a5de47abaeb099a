"""The workspace's jobs on AWS Batch that are not over: since when each runs, for how many dollars, and by which plan.

A job is beyond its plan once it has run twice as long as planned, and at least a quarter of an hour more. Waiting for a
machine costs nothing and does not count.
"""

import datetime as dt

from pydantic import Field

from configs.schema.config import Config
from infra.compute.batch.api import Api, WaitPolicy
from infra.compute.batch.end_jobs import is_of, live_jobs, on_batch
from infra.compute.batch.job import TAG, queues_of
from infra.compute.batch.job_detail import JobDetail
from infra.store.base import Store
from infra.store.records import find_record
from tasks.contracts.costs import PlannedRun, StageCost
from tasks.contracts.workspace import PLANNED
from tasks.foundation.clock import Moment, seconds
from tasks.foundation.records import Record

TIMES, MORE_SECONDS = 2.0, 900.0


class LiveJob(Record):
    """A job that AWS Batch has not ended."""

    job: str = Field(description="id of the job")
    name: str
    queue: str = Field(description="name of the job queue")
    status: str
    run_key: str = Field(description="run or refresh; empty: not told by its tags")
    stage: str
    attempt: str = Field(description="number of the stage's attempt; empty: not told by its tags")
    machines: str = Field(description="as in `4 x trn1.32xlarge`; empty: the run has no plan of this stage")
    submitted_at: Moment = Field(description="moment at which AWS Batch took it")
    started_at: Moment | None = Field(description="begin on its machines; null: it waits for them")
    seconds: float | None = Field(description="seconds on its machines; null: it waits for them")
    planned_seconds: float | None = Field(description="seconds on machines by the run's plan; null: not known")
    dollars: float | None = Field(description="dollars until now at the planned price; null: not known")
    beyond: bool = Field(description="true: it takes much longer than planned")

    @property
    def sentence(self) -> str:
        """A sentence about a job beyond its plan, with the way out."""
        had, planned = (f"{(value or 0.0) / 60:,.0f}" for value in (self.seconds, self.planned_seconds))
        spent = f", for ${self.dollars:,.2f} until now" if self.dollars is not None else ""
        return (
            f"{self.stage} of run {self.run_key}, attempt {self.attempt}, has run for {had} of {planned} minutes "
            f"planned{spent}: job {self.job}. See its log; to end it, cancel its flow run, or: "
            f"aws batch terminate-job --job-id {self.job} --reason beyond-plan"
        )


class JobsReport(Record):
    """The live jobs of a workspace, the oldest first."""

    queues: tuple[str, ...]
    jobs: tuple[LiveJob, ...]


def list_jobs(store: Store, config: Config) -> JobsReport:
    """Return the workspace's jobs on the configured queues that are not over. Changes nothing.

    Raises:
        ConfigError: queues or credentials are wrong.
        HostError: AWS Batch does not answer.
        StoreError: a plan is not readable.
    """
    if not on_batch(config):
        return JobsReport(queues=(), jobs=())
    queues = queues_of(config.batch)
    found = [job for job in live_jobs(Api.connect(WaitPolicy()), queues) if is_of(store, job)]
    return JobsReport(queues=tuple(queues), jobs=tuple(_listed(store, job, seconds()) for job in found))


def _listed(store: Store, job: JobDetail, now: float) -> LiveJob:
    run_key, stage, attempt = (job.tags.get(f"{TAG}-{key}", "") for key in ("run", "stage", "attempt"))
    planned = _planned(store, run_key, stage)
    began = job.now.started_at
    had = max(0.0, now - began) if began is not None else None
    expected = planned.phases.paid if planned is not None and planned.phases is not None else None
    dollars = None
    if planned is not None and planned.price is not None and had is not None:
        dollars = planned.price.dollars(had * planned.machines)
    return LiveJob(
        job=job.id,
        name=job.name,
        queue=job.queue,
        status=job.status,
        run_key=run_key,
        stage=stage,
        attempt=attempt,
        machines=f"{planned.machines} x {planned.instance}" if planned is not None and planned.instance else "",
        submitted_at=_moment(job.created_at),
        started_at=_moment(began) if began is not None else None,
        seconds=round(had, 1) if had is not None else None,
        planned_seconds=expected,
        dollars=dollars,
        beyond=had is not None and expected is not None and had > max(TIMES * expected, expected + MORE_SECONDS),
    )


def _planned(store: Store, run_key: str, stage: str) -> StageCost | None:
    plan = find_record(store, PLANNED.key(run=run_key), PlannedRun) if run_key else None
    return next((each for each in plan.cost.stages if each.stage == stage), None) if plan is not None else None


def _moment(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="seconds")

"""End the jobs of an interrupted attempt, and abandoned jobs, for which no process waits any more.

A job outlives its orchestrator on purpose, so that running the span again finds it. An abandoned job costs money:
`reap` finds it by its tags and judges it by lease and flow run.
"""

import time
from collections.abc import Iterable
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from configs.schema.config import Config
from infra.compute.batch import job as batch_job
from infra.compute.batch.api import Api, WaitPolicy
from infra.compute.batch.claim import advance, find_lease_end, read_claim
from infra.compute.batch.job import TAG, WORKSPACE_TAG, find_jobs, queues_of, tag_value
from infra.compute.batch.job_detail import JobDetail
from infra.store.base import Store
from tasks.contracts.jobs import stage_prefix
from tasks.contracts.stages import Chore, Stage, compute_of
from tasks.foundation.clock import seconds
from tasks.foundation.errors import StageError
from tasks.foundation.records import Record

_LOOK_EVERY_SECONDS = 0.5


def end_and_wait(api: Api, store: Store, prefix: str, reason: str, seconds: float) -> bool:
    """End all jobs of the attempt in the folder `prefix`; return True if they are over.

    They are asked to end even if no time is left to wait. The claim becomes `over` only if they are, else `ending`.

    Raises:
        ConfigError, HostError, StoreError: AWS Batch or the workspace could not be asked.
    """
    until = time.monotonic() + seconds
    claim = advance(store, prefix, "ending")
    if claim is None or claim.state == "over":
        return True
    if claim.job_id is None:
        found = find_jobs(api, claim.queue, claim.name, at_most=seconds / 4)
        if not found and seconds / 4 < batch_job.VISIBILITY_SECONDS:
            return False  # a job may still show up
    else:
        found = api.named(claim.queue, claim.name)
    ids = list(dict.fromkeys([*filter(None, [claim.job_id]), *(job.id for job in found)]))
    known = api.describe(ids)
    left = [job_id for job_id in ids if job_id not in known or not known[job_id].over]  # new ones may not be shown yet
    for job_id in left:
        api.terminate(job_id, reason)
    while left := [job.id for job in api.describe(left).values() if not job.over]:
        if time.monotonic() >= until:
            return False
        api.policy.sleep(_LOOK_EVERY_SECONDS)
    advance(store, prefix, "over")
    return True


def flow_run_of(job: JobDetail) -> str:
    """Return the id of the Prefect flow run that submitted a job, from its tags; empty outside of a flow run."""
    return job.tags.get(f"{TAG}-flow-run", "")


def attempt_prefix_of(job: JobDetail) -> str | None:
    """Return the folder of a job's attempt in the workspace, from its tags; None without those tags."""
    run, stage, attempt = (job.tags.get(f"{TAG}-{key}", "") for key in ("run", "stage", "attempt"))
    works = {work.value: work for work in (*Stage, *Chore)}
    return f"{stage_prefix(run, works[stage])}/attempt-{attempt}" if run and attempt and stage in works else None


def live_jobs(api: Api, queues: Iterable[str]) -> list[JobDetail]:
    """Return the project's jobs on these queues that are not over, oldest first.

    Raises:
        ConfigError: a queue does not exist, or AWS refuses.
        HostError: AWS Batch gives no answer.
    """
    found = [job for queue in dict.fromkeys(queues) for job in api.live(queue) if TAG in job.tags]
    return sorted(found, key=lambda job: (job.created_at, job.id))


def end_job(api: Api, store: Store, job: JobDetail, reason: str) -> None:
    """Ask AWS Batch to end a job. First mark its claim, so that no process waits for it again.

    Raises:
        ConfigError, HostError, StoreError: AWS Batch or the workspace could not be asked.
    """
    if (prefix := attempt_prefix_of(job)) is not None:
        claim = read_claim(store, prefix)
        if claim is not None and job.id == (claim.job_id or job.id):
            advance(store, prefix, "ending", job.id)
    api.terminate(job.id, reason)


GRACE_MINUTES = 15.0


class Reaped(Record):
    """One examined job, the action, and the reason."""

    job: str
    name: str = Field(description="name of the job")
    status: str
    action: Literal["ended", "kept", "failed"]
    why: str


class ReapReport(Record):
    """All jobs of this project on the configured queues."""

    queues: tuple[str, ...]
    grace_minutes: float
    jobs: tuple[Reaped, ...]


def reap(
    store: Store, config: Config, grace_minutes: float = GRACE_MINUTES, dry_run: bool = False, ask_prefect: bool = True
) -> ReapReport:
    """End the workspace's jobs whose flow run is over, or for which no process has waited for `grace_minutes`.

    A job's workspace is compared by its tag, as a tag can't hold every URI. If Prefect does not know the flow run, or
    `ask_prefect` is false, the lease alone decides. With `dry_run` nothing is ended, and the report shows the jobs that
    would be. If no stage runs on AWS Batch, no queue is examined.

    Raises:
        ConfigError: queues or credentials are wrong.
        HostError: AWS Batch does not answer.
    """
    if not on_batch(config):
        return ReapReport(queues=(), grace_minutes=grace_minutes, jobs=())
    api, now, grace = Api.connect(WaitPolicy()), seconds(), 60 * grace_minutes
    examined = []
    for job in live_jobs(api, queues_of(config.batch)):
        try:
            end, why = _judge(store, job, now, grace, ask_prefect)
            examined.append(
                _end(api, store, job, why)
                if end and not dry_run
                else _reaped(job, "kept", why + "; would be ended" * end)
            )
        except StageError as error:  # the others are examined all the same
            examined.append(_reaped(job, "failed", str(error)))
    return ReapReport(queues=queues_of(config.batch), grace_minutes=grace_minutes, jobs=tuple(examined))


def end_jobs_of(store: Store, config: Config, flow_run: str) -> list[Reaped]:
    """End all jobs of a cancelled flow run. Raises ConfigError, HostError as `reap`."""
    if not on_batch(config):
        return []
    api = Api.connect(WaitPolicy())
    jobs = live_jobs(api, queues_of(config.batch))
    mine = [job for job in jobs if flow_run_of(job) == flow_run and is_of(store, job)]
    return [_end(api, store, job, "its flow run was cancelled") for job in mine]


def on_batch(config: Config) -> bool:
    """Return True if a stage runs on AWS Batch."""
    return any(compute_of(config, stage) == "batch" for stage in Stage)


def is_of(store: Store, job: JobDetail) -> bool:
    """Return True if a job's tags name this workspace."""
    return job.tags.get(WORKSPACE_TAG) == tag_value(store.uri)


def _judge(store: Store, job: JobDetail, now: float, grace: float, ask_prefect: bool) -> tuple[bool, str]:
    """Return True to end a job, and the reason for either answer. Times are in seconds since the epoch."""
    if not is_of(store, job):
        return False, f"it belongs to another workspace, {job.tags.get(WORKSPACE_TAG, 'which is not named')}"
    prefix = attempt_prefix_of(job)
    attended = find_lease_end(store, prefix) if prefix else 0.0  # 0: no process ever waited
    if attended > now:
        return False, "a process waits for it"
    run = _flow_run(flow_run_of(job)) if ask_prefect and flow_run_of(job) else None
    if run is not None and run.state is not None and (run.state.is_completed() or run.state.is_cancelled()):
        return True, f"its flow run {run.name} is {run.state.name}"
    silent = now - max(attended, job.created_at)
    why = f"no process has waited for it for {silent / 60:.0f} minutes"
    if run is not None and run.state is not None and run.state.is_final():
        why += f", and its flow run {run.name} is {run.state.name}"
    return (True, why) if silent > grace else (False, f"{why}: it may be run again")


def _end(api: Api, store: Store, job: JobDetail, why: str) -> Reaped:
    end_job(api, store, job, f"millrace reap: {why}")
    return _reaped(job, "ended", why)


def _reaped(job: JobDetail, action: Literal["ended", "kept", "failed"], why: str) -> Reaped:
    return Reaped(job=job.id, name=job.name, status=job.status, action=action, why=why)


def _flow_run(identity: str) -> Any:
    from prefect.client.orchestration import get_client  # after a command has set the environment for it
    from prefect.exceptions import ObjectNotFound

    try:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(UUID(identity))
    except (ObjectNotFound, ValueError):
        return None

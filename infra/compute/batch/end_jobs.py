"""End the jobs of an interrupted attempt, and abandoned jobs, for which no process waits any more.

`millrace reap` uses the functions from `flow_run_of` on; it knows which flow runs are over.
"""

import time
from collections.abc import Iterable

from infra.compute.batch import job as batch_job
from infra.compute.batch.api import Api
from infra.compute.batch.claim import advance, read_claim
from infra.compute.batch.job import TAG, find_jobs
from infra.compute.batch.job_detail import JobDetail
from infra.store.base import Store
from tasks.contracts.jobs import stage_prefix
from tasks.contracts.stages import Chore, Stage

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

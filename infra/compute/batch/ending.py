"""Ending jobs: those of an interrupted attempt, and those that no process waits for any more.

`millrace reap` uses what is below `connect`; it knows which flow runs are over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from pydantic import Field

from infra.compute.batch import submitting
from infra.compute.batch.claim import advance, read_claim
from infra.compute.batch.client.api import Api
from infra.compute.batch.client.backoff import WaitPolicy
from infra.compute.batch.client.job_detail import JobDetail
from infra.compute.batch.job import TAG
from infra.compute.batch.submitting import look_up
from infra.store.base import Store
from tasks.contracts.jobs import stage_prefix
from tasks.contracts.stages import Chore, Stage
from tasks.foundation.records import Record

_LOOK_EVERY_SECONDS = 0.5


def end_and_wait(api: Api, store: Store, prefix: str, reason: str, seconds: float) -> bool:
    """End all jobs that were submitted for the attempt in the folder `prefix`; return whether they are over.

    They are asked to end even if there is no time to wait. The claim says `over` only if they are, else `ending`.

    Raises:
        ConfigError, HostError, StoreError: AWS Batch or the workspace could not be asked.
    """
    until = time.monotonic() + seconds
    claim = advance(store, prefix, "ending")
    if claim is None or claim.state == "over":
        return True
    if claim.job_id is None:
        found = look_up(api, claim.queue, claim.name, at_most=seconds / 4)
        if not found and seconds / 4 < submitting.VISIBILITY_SECONDS:
            return False  # a job may still show up
    else:
        found = api.named(claim.queue, claim.name)
    ids = list(dict.fromkeys([*filter(None, [claim.job_id]), *(job.id for job in found)]))
    left = [job_id for job_id in ids if not _is_over(api.describe([job_id]).get(job_id))]
    for job_id in left:
        api.terminate(job_id, reason)
    while left := [job.id for job in api.describe(left).values() if not job.over]:
        if time.monotonic() >= until:
            return False
        api.policy.sleep(_LOOK_EVERY_SECONDS)
    advance(store, prefix, "over")
    return True


def _is_over(job: JobDetail | None) -> bool:
    """Whether a job is over; one that AWS Batch does not show may be too new to be shown."""
    return job is not None and job.over


class LiveJob(Record):
    """A job of this project that is not over."""

    id: str
    name: str
    queue: str
    status: str
    created_at: float = Field(description="seconds since the epoch")
    tags: dict[str, str]

    @property
    def flow_run(self) -> str:
        """Id of the Prefect flow run that submitted it; empty outside of a flow run."""
        return self.tags.get(f"{TAG}-flow-run", "")

    @property
    def attempt_prefix(self) -> str | None:
        """The folder of its attempt in the workspace, from its tags; None without those tags."""
        run, stage, attempt = (self.tags.get(f"{TAG}-{key}", "") for key in ("run", "stage", "attempt"))
        works = {work.value: work for work in (*Stage, *Chore)}
        return f"{stage_prefix(run, works[stage])}/attempt-{attempt}" if run and attempt and stage in works else None


def connect(policy: WaitPolicy | None = None) -> Api:
    """Return AWS Batch's API, without progress reporting. Raises ConfigError: no region is configured."""
    return Api.connect(policy or WaitPolicy(pulse=lambda: None, say=lambda line: None))


def live_jobs(api: Api, queues: Iterable[str]) -> tuple[LiveJob, ...]:
    """Return the live jobs on these queues that this project submitted, oldest first.

    Raises:
        ConfigError: a queue does not exist, or AWS refuses.
        HostError: AWS Batch gives no answer.
    """
    found = [job for queue in dict.fromkeys(queues) for job in api.live(queue) if TAG in job.tags]
    return tuple(
        LiveJob(
            id=job.id,
            name=job.name,
            queue=job.queue,
            status=job.status,
            created_at=job.created_at,
            tags=dict(job.tags),
        )
        for job in sorted(found, key=lambda job: (job.created_at, job.id))
    )


def end_job(api: Api, store: Store, job: LiveJob, reason: str) -> None:
    """Ask AWS Batch to end a job. Its claim in the workspace is changed first, so that no process waits for it again.

    Raises:
        ConfigError, HostError, StoreError: AWS Batch or the workspace could not be asked.
    """
    if (prefix := job.attempt_prefix) is not None:
        claim = read_claim(store, prefix)
        if claim is not None and job.id == (claim.job_id or job.id):
            advance(store, prefix, "ending", job.id)
    api.terminate(job.id, reason)

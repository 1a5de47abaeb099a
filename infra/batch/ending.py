"""Ending jobs: of an attempt whose waiter was interrupted or gave it up, and of those that nobody waits for any more.

What is below `connect` is for `millrace reap`, which knows whose flow run is over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from pydantic import Field

from infra.batch import submitting
from infra.batch.api import Api
from infra.batch.claim import advance, read_claim
from infra.batch.details import Detail
from infra.batch.job import TAG
from infra.batch.patience import Patience
from infra.batch.submitting import look_up
from infra.store import Store
from tasks.contracts import Chore, Stage, stage_prefix
from tasks.records import Record

_LOOK_EVERY_SECONDS = 0.5


def end_and_wait(api: Api, store: Store, prefix: str, reason: str, seconds: float) -> bool:
    """Have all jobs ended that were submitted for the attempt in the folder `prefix`; whether they are over.

    They are asked to end even where there is no time to wait. The claim says `over` only if they are, else `ending`.

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
            return False  # one may still show up
    else:
        found = api.named(claim.queue, claim.name)
    ids = list(dict.fromkeys([*filter(None, [claim.job_id]), *(job.id for job in found)]))
    left = [one for one in ids if not _is_over(api.describe([one]).get(one))]
    for one in left:
        api.terminate(one, reason)
    while left := [job.id for job in api.describe(left).values() if not job.over]:
        if time.monotonic() >= until:
            return False
        api.patience.rest(_LOOK_EVERY_SECONDS)
    advance(store, prefix, "over")
    return True


def _is_over(job: Detail | None) -> bool:
    """One that Batch does not show may only be too new for that."""
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
        """Id of the Prefect flow run that it was submitted by; empty outside of one."""
        return self.tags.get(f"{TAG}-flow-run", "")

    @property
    def attempt_prefix(self) -> str | None:
        """The folder of its attempt in the workspace that its tag names; None where the tags don't tell."""
        run, stage, attempt = (self.tags.get(f"{TAG}-{key}", "") for key in ("run", "stage", "attempt"))
        works = {work.value: work for work in (*Stage, *Chore)}
        return f"{stage_prefix(run, works[stage])}/attempt-{attempt}" if run and attempt and stage in works else None


def connect(patience: Patience | None = None) -> Api:
    """AWS Batch, for who has nobody to answer to. Raises ConfigError: no region is configured."""
    return Api.connect(patience or Patience(pulse=lambda: None, say=lambda line: None))


def live_jobs(api: Api, queues: Iterable[str]) -> tuple[LiveJob, ...]:
    """The jobs on these queues that this project submitted and that are not over, the oldest first.

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
    """Ask for a job's end, after its claim in the workspace says so, that nobody comes back to it.

    Raises:
        ConfigError, HostError, StoreError: AWS Batch or the workspace could not be asked.
    """
    if (prefix := job.attempt_prefix) is not None:
        claim = read_claim(store, prefix)
        if claim is not None and job.id == (claim.job_id or job.id):
            advance(store, prefix, "ending", job.id)
    api.terminate(job.id, reason)

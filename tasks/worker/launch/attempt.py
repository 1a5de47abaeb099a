"""The attempts that a job's launcher claims, counts and records, one for each stage that the job does."""

import contextlib

from infra.handover import Owner, find_owner
from infra.store.base import Conflict, Store
from tasks.contracts.jobs import JobSpec
from tasks.contracts.workspace import OWNER, SPEC
from tasks.foundation.errors import CancelledError, StoreError
from tasks.worker.launch.container_position import ContainerPosition
from tasks.worker.process.job import read_spec


def claim_attempt(
    store: Store,
    spec: JobSpec,
    position: ContainerPosition,
    taken_at: float | None = None,
    free_since: float | None = None,
) -> Owner:
    """Claim the attempt for this job, all its tries and children; return the record of the first claim.

    Args:
        taken_at: time now if this try did an earlier stage, in seconds since the epoch.
        free_since: end of the job's stage before, likewise.

    Raises:
        CancelledError: another job owns the attempt; this job is a second submission.
        StoreError: the owner's record is not readable.
    """
    key = OWNER.key(run=spec.run_key, stage=spec.stage, attempt=spec.submitted_as)
    first = 1 if free_since is None else position.try_number
    mine = Owner(job=position.job, try_number=first, taken_at=taken_at, free_since=free_since)
    try:
        store.create(key, mine.model_dump_json(exclude_defaults=True).encode())
        return mine
    except Conflict:
        pass
    owner = find_owner(store, spec.job_prefix)
    if owner is None:
        raise StoreError(f"{store.uri}/{key} does not name the job that owns the attempt; delete it and try again")
    if owner.job != position.job:
        raise CancelledError(
            f"{spec.job_prefix} belongs to job {owner.job}; job {position.job} is a second submission of it and ends"
        )
    return owner


def spec_of_try(spec: JobSpec, position: ContainerPosition, first: int = 1) -> JobSpec:
    """Return the spec for this try: Batch's own retries count up from the submitted attempt, which try `first` took."""
    return spec.model_copy(update={"attempt": spec.submitted_as + position.try_number - first})


def write_spec(store: Store, spec: JobSpec) -> None:
    """Write the spec of a later try for its workers; the first try's spec exists already."""
    if spec.attempt != spec.submitted_as:
        with contextlib.suppress(Conflict):  # another child of the array was first
            store.create(SPEC.of(spec), spec.to_json())


def spec_at(store: Store, key: str) -> JobSpec:
    """Return the spec of any stage under `key`, with `#` and its SHA-256. Raises ConfigError: see `read_spec`."""
    return read_spec(store, key, SPEC.fields(key.partition("#")[0])["stage"])

"""The attempt that a job's launcher claims, counts and records."""

import contextlib

from infra.compute.batch.claim import Owner, owner_of
from infra.store.base import Conflict, Store
from tasks.contracts.jobs import JobSpec
from tasks.contracts.workspace import OWNER, SPEC
from tasks.foundation.errors import CancelledError, StoreError
from tasks.worker.launch.container_position import ContainerPosition


def claim_attempt(store: Store, spec: JobSpec, position: ContainerPosition) -> None:
    """Claim the attempt for this job, all its tries and children.

    Raises:
        CancelledError: another job owns the attempt; this job is a second submission.
        StoreError: the owner's record is not readable.
    """
    key = OWNER.key(run=spec.run_key, stage=spec.stage, attempt=spec.submitted_as)
    try:
        store.create(key, Owner(job=position.job).to_json())
        return
    except Conflict:
        pass
    owner = owner_of(store, spec.job_prefix)
    if owner is None:
        raise StoreError(f"{store.uri}/{key} does not name the job that owns the attempt; delete it and try again")
    if owner != position.job:
        raise CancelledError(
            f"{spec.job_prefix} belongs to job {owner}; job {position.job} is a second submission of it and ends"
        )


def spec_of_try(spec: JobSpec, position: ContainerPosition) -> JobSpec:
    """Return the spec for this try: Batch's own retries count up from the submitted attempt."""
    return spec.model_copy(update={"attempt": spec.submitted_as + position.try_number - 1})


def write_spec(store: Store, spec: JobSpec) -> None:
    """Write the spec of a later try for its workers; the first try's spec exists already."""
    if spec.attempt != spec.submitted_as:
        with contextlib.suppress(Conflict):  # another child of the array was first
            store.create(SPEC.of(spec), spec.to_json())

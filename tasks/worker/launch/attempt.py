"""The attempt of this try of the job in the workspace: its owner, its spec, its ending."""

import contextlib
import json

from infra.root_cause import Ending
from infra.store.base import Conflict, Store
from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import CancelledError, StoreError
from tasks.worker.launch.container_position import ContainerPosition


def own_attempt(store: Store, spec: JobSpec, position: ContainerPosition) -> None:
    """Claim the attempt for this job with all its tries and children.

    Raises:
        CancelledError: another job owns it; this one was submitted a second time.
        StoreError: the record of the owner is not readable.
    """
    key = f"{spec.job_prefix}/owner.json"
    try:
        store.create(key, json.dumps({"job": position.job}).encode())
        return
    except Conflict:
        pass
    try:
        owner = json.loads(store.read(key))["job"]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{store.uri}/{key} does not name the job that owns the attempt; delete it and try again"
        ) from error
    if owner != position.job:
        raise CancelledError(
            f"{spec.job_prefix} belongs to job {owner}; job {position.job} is a second submission of it and ends"
        )


def spec_of_try(spec: JobSpec, position: ContainerPosition) -> JobSpec:
    """Return the spec for this try: Batch's own retries count on from the attempt that was submitted."""
    return spec.model_copy(update={"attempt": spec.submitted_as + position.try_number - 1})


def write_spec(store: Store, spec: JobSpec) -> None:
    """Write the spec of a later try where its workers read it; that of the first try is already there."""
    if spec.attempt != spec.submitted_as:
        with contextlib.suppress(Conflict):  # another child of the array was first
            store.create(f"{spec.attempt_prefix}/spec.json", spec.to_json())


def write_ending(store: Store, spec: JobSpec, position: ContainerPosition, ending: Ending) -> None:
    """Write why the try failed, for the process that waits for the job."""
    name = "ending.json" if position.array_index is None else f"ending-{position.array_index}.json"
    store.write(f"{spec.attempt_prefix}/{name}", ending.to_json())

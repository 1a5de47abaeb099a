"""Which attempt this try of the job is, whose it is, and how it ended, in the workspace."""

from __future__ import annotations

import contextlib
import json

from infra.store import Conflict, Store
from tasks.contracts import JobSpec
from tasks.endings import Ending
from tasks.errors import CancelledError, StoreError
from tasks.worker.launch.place import Place


def own_attempt(store: Store, spec: JobSpec, place: Place) -> None:
    """Claim the attempt for this job, all its tries and children.

    Raises:
        CancelledError: another job has it; this one was submitted a second time.
        StoreError: the owner's record is not readable.
    """
    key = f"{spec.job_prefix}/owner.json"
    try:
        store.create(key, json.dumps({"job": place.job}).encode())
        return
    except Conflict:
        pass
    try:
        owner = json.loads(store.read(key))["job"]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{store.uri}/{key} does not say which job owns the attempt; delete it, and try again"
        ) from error
    if owner != place.job:
        raise CancelledError(
            f"{spec.job_prefix} belongs to job {owner}; job {place.job} was submitted for it a second time, and ends"
        )


def spec_of_try(spec: JobSpec, place: Place) -> JobSpec:
    """The spec for this try: Batch's own retries count on from the attempt that was submitted."""
    return spec.model_copy(update={"attempt": spec.submitted_as + place.try_number - 1})


def write_spec(store: Store, spec: JobSpec) -> None:
    """Write a later try's spec to where its workers look for it; the first one's is there."""
    if spec.attempt != spec.submitted_as:
        with contextlib.suppress(Conflict):  # another child of the array was first
            store.create(f"{spec.attempt_prefix}/spec.json", spec.to_json())


def write_ending(store: Store, spec: JobSpec, place: Place, ending: Ending) -> None:
    """Say why the try failed, for whoever waits for it."""
    name = "ending.json" if place.array_index is None else f"ending-{place.array_index}.json"
    store.write(f"{spec.attempt_prefix}/{name}", ending.to_json())

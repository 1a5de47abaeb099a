"""The cause of a container's end: from its launcher's record, else from AWS Batch's reason, else from its exit code."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from infra.compute.batch.job import HOST_LOST, definition_of
from infra.compute.batch.job_detail import BY_QUEUE, Run
from infra.root_cause import CONSEQUENCES, Ending, classify_death, ending_key
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import FailureClass

TIMED_OUT = "Job attempt duration exceeded timeout"
EXITED = "Essential container in task exited"
_NO_IMAGE = ("CannotPull", "ImagePull")
_NO_START = ("CannotStartContainerError", "CannotCreateContainerError", "ResourceInitializationError")
_NO_MEMORY = "OutOfMemoryError"


class Cause(NamedTuple):
    """A failure class, and a message that names the remedy."""

    failure: FailureClass
    message: str


def ending_of(store: Store, spec: JobSpec, attempt: int, index: int | None) -> Ending | None:
    """Return the cause that the launcher of an attempt, or of a child of its array, wrote; None if it wrote none."""
    try:
        return Ending.model_validate_json(store.read(ending_key(spec, attempt, index)))
    except (FileNotFoundError, ValidationError):
        return None  # its host was lost or its disk was full: AWS Batch knows more


def cause_of(
    spec: JobSpec, ending: Ending | None, run: Run, ended_for: str | None, image: str, tail: Callable[[], Sequence[str]]
) -> Cause:
    """Return the cause of a container's failure.

    AWS Batch's reason overrides a launcher's record that may be its consequence, for example of a SIGTERM.

    Args:
        ended_for: the reason with which the job was ended; None: it ended by itself.
        tail: returns the last lines of its log.
    """
    by_batch = _cause_by_batch(spec, run, ended_for, image)
    ended_itself = ending is not None and ending.leaves and run.status_reason.startswith(HOST_LOST)
    if ending is not None and (ended_itself or not (by_batch and ending.failure in CONSEQUENCES)):
        return Cause(ending.failure, ending.message)
    if by_batch is not None:
        return by_batch
    said = run.reason or run.status_reason
    if run.exit_code is None:
        return Cause(FailureClass.HOST, f"{spec.stage}: the container was lost; AWS Batch says: {said or 'nothing'}")
    last = tail()
    failure, meaning = classify_death(run.exit_code, last)
    also = f" ({said})" if said and said != EXITED else ""
    lines = "\n".join(last) or "(none)"
    return Cause(
        failure, f"{spec.stage}: the container exited with {run.exit_code}{also}{meaning}; last lines:\n{lines}"
    )


def _cause_by_batch(spec: JobSpec, run: Run, ended_for: str | None, image: str) -> Cause | None:
    if ended_for is not None:
        return _ended(spec, ended_for)
    definition = f"job definition {definition_of(spec.stage, spec.config.batch)}"
    if run.status_reason.startswith(HOST_LOST):
        return Cause(FailureClass.HOST, f"{spec.stage}: the machine was lost: {run.status_reason}")
    if TIMED_OUT in (run.status_reason, run.reason):
        return Cause(
            FailureClass.HANG,
            f"{spec.stage}: ran for longer than batch.attempt_seconds = {spec.config.batch.attempt_seconds} and was "
            "ended; raise it if the work needs longer",
        )
    if _NO_MEMORY in run.reason:
        return Cause(
            FailureClass.OOM,
            f"{spec.stage}: the container ran out of memory ({run.reason}); lower train.batch_rows or "
            f"infer.batch_sequences, or give {definition} more",
        )
    if run.reason.startswith(_NO_IMAGE):
        return Cause(
            FailureClass.CONFIG,
            f"{spec.stage}: the image {image} could not be pulled ({run.reason}); check that it exists, that the "
            f"execution role may pull it, and that the machines reach its registry; {definition} names it",
        )
    if run.reason.startswith(_NO_START):
        return Cause(
            FailureClass.CONFIG,
            f"{spec.stage}: the container could not start ({run.reason}); check the image {image} and {definition}",
        )
    return None


def _ended(spec: JobSpec, why: str) -> Cause:
    """Return the cause of a job that this project, AWS Batch or a queue ended, from the reason."""
    if "MISCONFIGURATION" in why:
        return Cause(FailureClass.CONFIG, f"{spec.stage}: no machine can ever run this job: {why}")
    if why.startswith("CAPACITY"):
        return Cause(FailureClass.CAPACITY, f"{spec.stage}: {why.removeprefix('CAPACITY: ')}")
    if BY_QUEUE in why:
        return Cause(FailureClass.CAPACITY, f"{spec.stage}: no machine within the time that the queue allows: {why}")
    return Cause(FailureClass.CANCELLED, f"{spec.stage}: the job was ended: {why or 'no reason was given'}")

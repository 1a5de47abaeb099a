"""AWS Batch's attempts of a job, as the ledger records them: cause, seconds and hosts.

The cause is from the launcher's record, else from AWS Batch's reason, else from the exit code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pydantic import ValidationError

from infra.compute.batch.job import HOST_LOST, definition_of, is_repeated
from infra.compute.batch.job_detail import BY_QUEUE, ON_MACHINE, JobDetail, Run
from infra.root_cause import CONSEQUENCES, Ending, classify_death, ending_key
from infra.store.base import Store
from tasks.contracts.jobs import BatchAttempt, JobSpec
from tasks.foundation.errors import POLICIES, FailureClass

TIMED_OUT = "Job attempt duration exceeded timeout"
EXITED = "Essential container in task exited"
# Reasons of Amazon ECS, then of Kubernetes.
_NO_IMAGE = ("CannotPull", "ImagePull", "ErrImagePull", "InvalidImageName")
_NO_START = (
    *("CannotStartContainerError", "CannotCreateContainerError", "ResourceInitializationError"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "ContainerCannotRun", "StartError"),
)
_NO_MEMORY = ("OutOfMemoryError", "OOMKilled")
_SAYS_NOTHING = ("Error", "Completed")  # reasons of Kubernetes for any exit code


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
    said = run.status_reason if run.reason in _SAYS_NOTHING else run.reason or run.status_reason
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
    if any(words in run.reason for words in _NO_MEMORY):
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


Boots = dict[tuple[str, int], float]  # (job or child, attempt number) -> time it was first seen on a machine


@dataclass(frozen=True)
class JobPart:
    """A part of a job with its own attempts: a job with its nodes, or one child of an array."""

    detail: JobDetail
    machines: int = 1
    index: int | None = None
    nodes: tuple[JobDetail, ...] = ()  # the main one included

    @property
    def runs(self) -> tuple[Run, ...]:
        """The ended attempts, plus one for a job that was ended before its next attempt began."""
        detail, last = self.detail, self.detail.runs[-1] if self.detail.runs else None
        begins_again = last is None or (detail.asked_to_end and is_repeated(last.status_reason, last.exit_code))
        if detail.status == "FAILED" and begins_again:
            never = Run(stopped_at=detail.stopped_at, reason=detail.now.reason, status_reason=detail.status_reason)
            return (*detail.runs, never)
        return detail.runs

    @property
    def gave_up(self) -> bool:
        return self.detail.status == "FAILED"


class _Seconds(NamedTuple):
    queued: float
    booting: float
    running: float


@dataclass
class BatchAttempts:
    """Tracks the times at which the parts of a job got machines, and its reported attempts."""

    spec: JobSpec
    store: Store
    job: str
    tail: Callable[[str], Sequence[str]]  # the last lines of a log stream
    boots: Boots = field(default_factory=dict)
    reported: list[BatchAttempt] = field(default_factory=list)

    def see(self, parts: Sequence[JobPart], now: float) -> list[BatchAttempt]:
        """Return the attempts that have ended since the last call, in order."""
        for part in parts:
            if part.detail.status in ON_MACHINE:
                self.boots.setdefault((part.detail.id, len(part.detail.runs) + 1), now)
        new = []
        while (number := len(self.reported) + 1) <= max((len(part.runs) for part in parts), default=0):
            if not all(len(part.runs) >= number or part.detail.over for part in parts):
                break  # a child of the array has not ended
            self.reported.append(self._attempt(parts, number))
            new.append(self.reported[-1])
        return new

    def _attempt(self, parts: Sequence[JobPart], number: int) -> BatchAttempt:
        taking_part = [part for part in parts if len(part.runs) >= number]
        cause = self._cause(parts, number)
        seconds = {part.index: self._seconds(part, number) for part in taking_part}
        longest = max(seconds.values(), key=lambda seconds: seconds.running)
        machines = sum(part.machines for part in taking_part)
        held = sum(part.machines * (seconds[part.index].booting + seconds[part.index].running) for part in taking_part)
        hosts = (host for part in taking_part for host in _hosts(part, number))
        return BatchAttempt(
            attempt=self.spec.submitted_as + number - 1,
            failure=cause.failure if cause else None,
            message=cause.message if cause else "",
            queued=longest.queued,
            booting=longest.booting,
            running=longest.running,
            machines=machines,
            instance=next((part.detail.instance for part in taking_part if part.detail.instance), None),
            billable_seconds=round(held, 3),
            job=self.job,
            hosts=tuple(dict.fromkeys(hosts)),
            stopped_at=max((stop for part in taking_part if (stop := part.runs[number - 1].stopped_at)), default=None),
        )

    def _cause(self, parts: Sequence[JobPart], number: int) -> Cause | None:
        """Return the cause of a part with a permanent failure, else of the part that failed first.

        A part that gave up in an earlier attempt also counts as failed in this one.
        """
        found = []
        for part in parts:
            tried = min(number, len(part.runs))
            if (tried == number or part.gave_up) and (cause := self._cause_in(part, tried)) is not None:
                found.append((POLICIES[cause.failure].transient, part.runs[tried - 1].stopped_at or 0.0, cause))
        return min(found, key=lambda one: one[:2], default=(None, None, None))[2]

    def _cause_in(self, part: JobPart, tried: int) -> Cause | None:
        run, last = part.runs[tried - 1], tried == len(part.runs)
        if last and part.detail.status == "SUCCEEDED":
            return None
        ended_for = _ended_for(part.detail) if last else None
        if last and ended_for is None and not run.status_reason:
            run = replace(run, status_reason=part.detail.status_reason)
        ending = ending_of(self.store, self.spec, self.spec.submitted_as + tried - 1, part.index)
        cause = cause_of(self.spec, ending, run, ended_for, part.detail.image, lambda: self.tail(run.stream))
        where = "" if part.index is None else f" (child {part.index} of the array)"
        return Cause(cause.failure, cause.message + where)

    def _seconds(self, part: JobPart, number: int) -> _Seconds:
        run = part.runs[number - 1]
        free_since = part.runs[number - 2].stopped_at if number > 1 else part.detail.created_at
        stopped = run.stopped_at or run.started_at or part.detail.stopped_at or free_since or 0.0
        started = run.started_at or stopped
        machine = min(self.boots.get((part.detail.id, number), started), started)
        free_since = min(free_since or machine, machine)
        return _Seconds(
            *(round(max(0.0, one), 3) for one in (machine - free_since, started - machine, stopped - started))
        )


def _ended_for(detail: JobDetail) -> str | None:
    """Return the reason with which a job was ended; None if it ended by itself."""
    by_itself = detail.status_reason.startswith((HOST_LOST, TIMED_OUT, EXITED))
    return detail.status_reason if detail.asked_to_end and not by_itself else None


def _hosts(part: JobPart, number: int) -> list[str]:
    runs = [*(node.runs[number - 1] for node in part.nodes if len(node.runs) >= number), part.runs[number - 1]]
    return [run.host for run in runs if run.host]


def streams_of(parts: Sequence[JobPart]) -> tuple[Mapping[str, str], set[str]]:
    """Return the line prefix of each container's log stream, and the streams of running containers."""
    labels: dict[str, str] = {}
    live = set()
    for part in parts:
        for one in part.nodes or (part.detail,):
            node = one.id.rpartition("#")[2]
            label = f"[node {node}] " if part.machines > 1 else "" if part.index is None else f"[{part.index}] "
            labels |= {run.stream: label for run in (*one.runs, one.now) if run.stream}
            if one.now.stream and not one.over and not any(run.stream == one.now.stream for run in one.runs):
                live.add(one.now.stream)
    return labels, live

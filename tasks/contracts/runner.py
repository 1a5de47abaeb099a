"""The interface of a runner of stages: infra/compute/local.py runs them on this machine, batch/ on AWS Batch."""

import json
from typing import Protocol

from pydantic import Field

from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import FailureClass
from tasks.foundation.records import Record

_MARK = "@progress "


class Progress(Record):
    """`done` of `total` units, which `what` names; `note` is the current loss or rate."""

    what: str
    done: int
    total: int
    note: str = ""


def report(what: str, done: int, total: int, note: str = "") -> None:
    """Print the progress; workers call it on rank 0."""
    print(_MARK + Progress(what=what, done=done, total=total, note=note).model_dump_json(), flush=True)


def parse(line: str) -> Progress | None:
    """Return the progress in a line of worker output; None for log text and truncated lines."""
    if not line.startswith(_MARK):
        return None
    try:
        return Progress.model_validate(json.loads(line.removeprefix(_MARK)))
    except ValueError:
        return None


class BatchAttempt(Record):
    """One attempt that AWS Batch made of a job, as the ledger records it.

    The first has the number of the submitted attempt; retries by AWS Batch count up from it.
    """

    attempt: int
    failure: FailureClass | None = Field(description="null: it succeeded")
    message: str
    queued: float = Field(description="seconds until it had a machine")
    booting: float = Field(description="seconds from then until the workers' command began")
    running: float = Field(description="seconds that the command ran; the longest of several jobs")
    machines: int = Field(description="machines that it had")
    instance: str | None = Field(
        default=None, description="instance type that AWS Batch names, as for jobs of several nodes; null: none"
    )
    billable_seconds: float = Field(description="seconds that each machine was held, added up over the machines")
    job: str
    hosts: tuple[str, ...]
    stopped_at: float | None = Field(default=None, description="seconds since the epoch, by the clock of AWS")


class Listener(Protocol):
    """Receives a running stage's output."""

    def log(self, line: str) -> None: ...
    def progress(self, progress: Progress) -> None: ...


class Waiter(Listener, Protocol):
    """The process that waits for a stage, as its runner sees it."""

    flow_run: str  # id of the Prefect flow run; empty outside of one

    def tried(self, one: BatchAttempt) -> None:
        """Record an attempt that has ended; after a re-attachment the same one is reported again."""
        ...

    def pulse(self) -> None:
        """Called about every second. Raises CancelledError if the flow run was asked to end."""
        ...


class Runner(Protocol):
    """Runs one stage to its end."""

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        """Start the workers of a stage whose spec is in the workspace, or re-attach to them, and wait until they end.

        Args:
            tries: the maximum number of attempts, including the runner's own retries.

        Raises:
            StageError: class and message of the earliest failure among the workers.
        """
        ...

    def found(self, spec: JobSpec) -> bool:
        """Return True if the work of this spec was started before and can still be waited for."""
        ...

"""What the control plane asks of a place that runs stages: `local_runner.py` is this machine, `batch/` is AWS Batch."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from configs.schema import Config
from infra.store import Store
from tasks.contracts import Chore, JobSpec, Stage
from tasks.errors import FailureClass
from tasks.progress import Progress
from tasks.records import Record


class Try(Record):
    """One try of an attempt's work on machines that somebody else hands out, as the ledger wants it.

    The first try is the attempt that was started; those that the place made of itself count on from it.
    """

    attempt: int
    failure: FailureClass | None = Field(description="null: done")
    message: str
    queued: float = Field(description="seconds until a machine was there")
    booting: float = Field(description="seconds from then until the workers' command began")
    running: float = Field(description="seconds that the command ran, of the longest job where there are several")
    dollars_per_hour: float = Field(description="of all machines together")
    cost: float = Field(description="dollars: each machine for as long as it was held")
    job: str
    hosts: tuple[str, ...]


class Listener(Protocol):
    """Where a running stage's output goes, and who waits for it."""

    def log(self, line: str) -> None: ...
    def progress(self, progress: Progress) -> None: ...


class Waiter(Listener, Protocol):
    """A listener on whose behalf a runner waits."""

    flow_run: str  # id of the Prefect flow run; empty outside of one

    def tried(self, one: Try) -> None:
        """Hear of a try that has ended; told again of the same one after a re-attachment."""
        ...

    def pulse(self) -> None:
        """To be called every second or so. Raises CancelledError where someone asked the flow run to end."""
        ...


class Runner(Protocol):
    """Runs one stage to its end."""

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        """Start the workers of a stage whose spec lies in the workspace, or find them again, and wait for them.

        Args:
            tries: the most that may be made of it, retries that the place makes by itself included.

        Raises:
            StageError: of the class of the earliest failure among the workers, with its message.
        """
        ...

    def found(self, spec: JobSpec) -> bool:
        """Whether the work of this spec was started before and can still be waited for, instead of starting anew."""
        ...


def make_runner(config: Config, store: Store, stage: Stage | Chore) -> Runner:
    """The runner of a stage, as its `compute:` says."""
    if config.compute_of(stage.value) == "batch":
        from infra.batch.runner import BatchRunner  # boto3, which local runs need not wait for

        return BatchRunner(store, config)
    from infra.local_runner import LocalRunner

    return LocalRunner(store)

"""Stages run by the runner of AWS Batch, for waiters that do something at the right moment."""

from __future__ import annotations

from collections.abc import Callable

from infra.compute.batch.claim import read_claim
from infra.compute.batch.runner import BatchRunner
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import BatchAttempt, JobSpec
from tests.support.fakes.stand_ins import Heard

WAITS = 'say("up"); wait_for("go")'  # for containers that wait for `going`


class Waiting(Heard):
    """A waiter that does something at a certain line of the log, or when a try has ended."""

    flow_run = "flow-run-1"

    def __init__(self, word: str = "", then: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._word, self._then = word, then

    def log(self, line: str) -> None:
        super().log(line)
        if line.endswith(self._word or "\n"):
            self._then()

    def tried(self, one: BatchAttempt) -> None:
        super().tried(one)
        if self._word == "tried":
            self._then()


class Dying(Heard):
    """A waiter that is interrupted after a line of the log."""

    def __init__(self, error: BaseException, word: str = "up") -> None:
        super().__init__()
        self._error, self._word = error, word

    def pulse(self) -> None:
        if any(line.endswith(self._word) for line in self.lines):
            raise self._error


def run(store: Store, spec: JobSpec, waiter: Heard | None = None, tries: int = 3) -> Heard:
    waiter = waiter or Waiting()
    BatchRunner(store, spec.config).run(spec, waiter, tries)
    return waiter


def state_of(store: DirectoryStore, spec: JobSpec) -> str | None:
    claim = read_claim(store, spec.job_prefix)
    return claim.state if claim else None


def going(store: DirectoryStore, spec: JobSpec) -> Callable[[], None]:
    """Lets containers go on that wait for it."""
    return lambda: store.write(f"{spec.job_prefix}/go", b"")

"""`python -m tests.support.fakes.failing ...` is `millrace` with real workers, some of which fail.

FAIL=train@2026-10:DATA,infer@2026-05:OOM: the job of that stage and span ends with that class at its first sign of life
(training after its first progress), while its workers are being stopped.
"""

from __future__ import annotations

import os
import signal

import infra.compute.factory
from configs.schema.config import Config
from flows.cli import main
from infra.compute.local import LocalRunner
from infra.store.base import Store
from tasks.contracts.jobs import BatchAttempt, JobSpec, Progress, Runner, Waiter
from tasks.contracts.stages import Chore, Stage
from tasks.foundation.errors import ERRORS, FailureClass


class Fuse:
    """A waiter that raises as soon as the workers do something."""

    def __init__(self, waiter: Waiter, error: Exception, in_training: bool) -> None:
        self.flow_run = waiter.flow_run
        self._waiter, self._error, self._in_training = waiter, error, in_training

    def log(self, line: str) -> None:
        self._waiter.log(line)
        if not self._in_training:
            raise self._error

    def progress(self, progress: Progress) -> None:
        self._waiter.progress(progress)
        if progress.done or not self._in_training:
            raise self._error

    def tried(self, one: BatchAttempt) -> None:
        self._waiter.tried(one)

    def pulse(self) -> None:
        self._waiter.pulse()


class FailingRunner(LocalRunner):
    """Fails as the environment says."""

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        how = dict(one.split(":") for one in os.environ["FAIL"].split(",")) if os.environ.get("FAIL") else {}
        if failure := how.get(f"{spec.stage}@{spec.span.name}"):
            error = ERRORS[FailureClass(failure)](f"{spec.stage} was ended in its work")
            waiter = Fuse(waiter, error, in_training=spec.stage is Stage.train)
        super().run(spec, waiter, tries)


def make_runner(config: Config, store: Store, stage: Stage | Chore) -> Runner:
    return FailingRunner(store)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job hands down that it is ignored
    infra.compute.factory.make_runner = make_runner
    main()

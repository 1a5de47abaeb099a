"""Real worker processes that do no arithmetic, of which some fail at random, as a seed says.

The runner, its processes, their exit codes and signals are real. What a worker would leave (outputs, result, error
file) is made by the process of the flow, and put in its place by the worker, which is a line of shell.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from typing import Literal, get_args

from infra.compute.local import LocalRunner
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec
from tasks.contracts.outcomes import Phases, WorkerFailure
from tasks.foundation.errors import POLICIES, FailureClass, StoreError
from tests.support.fakes.fake_runner import FakeRunner

# A worker that is killed, one that writes an error file and exits with the code of a class, and a workspace that can't
# be read when the flow looks for the result.
Fault = Literal["killed", "peer lost", "hang", "store of the worker", "store of the flow"]
CLASSES: dict[Fault, FailureClass] = {
    "killed": FailureClass.HOST,
    "peer lost": FailureClass.HOST,
    "hang": FailureClass.HANG,
    "store of the worker": FailureClass.STORE,
    "store of the flow": FailureClass.STORE,
}
SPENT = Phases(booting=0.01, productive=0.01)  # what a worker says that it took; its process takes about as long


class Faults:
    """Which attempts fail: a share of all, by the seed, span, stage and number of the attempt alone."""

    def __init__(self, seed: int, share: float) -> None:
        self._seed, self._share = seed, share
        self.injected: Counter[Fault] = Counter()

    def draw(self, spec: JobSpec) -> Fault | None:
        """Return the fault of an attempt; None: it succeeds."""
        chance = random.Random(f"{self._seed} {spec.span.name} {spec.stage} {spec.attempt}")
        if chance.random() >= self._share:
            return None
        fault = chance.choice(get_args(Fault))
        self.injected[fault] += 1
        return fault


class FlakyStore(DirectoryStore):
    """A directory of which a result can't be read once, for each time that it is said to fail."""

    def __init__(self, store: DirectoryStore) -> None:
        super().__init__(store.root)
        self.failing: set[str] = set()

    def read(self, key: str) -> bytes:
        if key in self.failing:
            self.failing.remove(key)
            raise StoreError(f"{self.uri}/{key} can't be read: Input/output error")
        return super().read(key)


class ShortWorkers(LocalRunner):
    """Runs each worker as a shell that moves a prepared file, or dies."""

    def __init__(self, store: FlakyStore, faults: Faults) -> None:
        super().__init__(store)
        self._flaky, self._faults, self._fakes = store, faults, FakeRunner(store)

    def _start(self, spec: JobSpec, environment: dict[str, str]) -> subprocess.Popen[str]:
        fault = self._faults.draw(spec)
        if fault == "killed":
            script = f"kill -{signal.SIGKILL} $$"
        elif fault in (None, "store of the flow"):
            result = self._fakes.result(spec).model_copy(update={"phases": SPENT})
            script = self._moved(spec, f"{spec.stage_prefix}/result.json", result.to_json())
            if fault is not None:
                self._flaky.failing.add(f"{spec.stage_prefix}/result.json")
        else:
            failure = CLASSES[fault]
            words = f"{spec.stage}: {fault}, injected into attempt {spec.attempt}"
            record = WorkerFailure(rank=0, at=time.time(), failure=failure, message=words, traceback="", phases=SPENT)
            moved = self._moved(spec, f"{spec.attempt_prefix}/error-rank0.json", record.to_json())
            script = f"{moved}; exit {POLICIES[failure].exit_code}"
        return subprocess.Popen(
            ["/bin/sh", "-c", f"echo working; {script}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _moved(self, spec: JobSpec, key: str, data: bytes) -> str:
        """Return the command that brings a file to its place."""
        prepared = f"{spec.attempt_prefix}/prepared"
        self.store.write(prepared, data)
        return f"mv '{self._flaky.path(prepared)}' '{self._flaky.path(key)}'"

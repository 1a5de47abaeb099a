"""The argument of a stage's worker code: its spec, the store, its rank, a clock of phases."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec
from tasks.contracts.outcomes import KeptWork, Phases, WorkerFailure
from tasks.contracts.workspace import FAILURE, KEPT_WORK
from tasks.foundation.errors import POLICIES, ConfigError, StageError, StoreError, classify, message_of
from tasks.foundation.neuron_errors import classify_log
from tasks.worker.process.machine import Machine

Phase = Literal["booting", "compiling", "restoring", "productive"]


@dataclass(frozen=True)
class Share:
    """One worker's part of a list of equal pieces: each piece whose number modulo `of` is `index`."""

    index: int
    of: int


@dataclass(frozen=True)
class Rank:
    """This process's rank among the workers of one stage, from torchrun's environment; a single worker is rank 0 of 1.

    If a stage runs as an array of jobs, ranks count within one child; children don't communicate.
    """

    index: int
    world: int
    local: int
    local_world: int = 1  # workers on this machine, this one included
    child: int = 0
    children: int = 1

    @classmethod
    def from_environment(cls) -> Rank:
        return cls(
            index=int(os.environ.get("RANK", "0")),
            world=int(os.environ.get("WORLD_SIZE", "1")),
            local=int(os.environ.get("LOCAL_RANK", "0")),
            local_world=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            child=int(os.environ.get("MILLRACE_ARRAY_INDEX", "0")),
            children=int(os.environ.get("MILLRACE_ARRAY_SIZE", "1")),
        )

    @property
    def first_of_machine(self) -> int:
        """Rank of this machine's first worker."""
        return self.index - self.local

    @property
    def is_main(self) -> bool:
        return self.index == 0

    @property
    def apart(self) -> Rank:
        """This worker, with the same share, as the only one in its process group."""
        return Rank(0, 1, 0, self.local_world, self.share.index, self.share.of)

    @property
    def share(self) -> Share:
        """This worker's part among all workers of the stage, in all children of an array."""
        return Share(self.child * self.world + self.index, self.children * self.world)


class PhaseClock:
    """Adds up the seconds of each phase. Outside any phase the time counts as booting: imports, checks, the end."""

    def __init__(self, booting: float) -> None:
        self._seconds: dict[Phase, float] = {"booting": booting, "compiling": 0.0, "restoring": 0.0, "productive": 0.0}
        self._phase: Phase = "booting"
        self._since = time.monotonic()

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Count the time inside the block as `phase`; blocks may be nested, the inner one counts."""
        outer = self._switch(phase)
        try:
            yield
        finally:
            self._switch(outer)

    def count_as(self, phase: Phase, seconds: float) -> None:
        """Move seconds from productive to another phase: compiling happens in the middle of steps."""
        self._seconds["productive"] -= seconds
        self._seconds[phase] += seconds

    def read(self) -> Phases:
        self._switch(self._phase)
        return Phases(**{phase: round(seconds, 3) for phase, seconds in self._seconds.items()})

    def _switch(self, phase: Phase) -> Phase:
        now = time.monotonic()
        self._seconds[self._phase] += now - self._since
        self._since = now
        outer, self._phase = self._phase, phase
        return outer


@dataclass(frozen=True)
class Job:
    """One stage's work for one process."""

    spec: JobSpec
    store: Store
    rank: Rank
    clock: PhaseClock = field(compare=False)
    # For subprocesses: the environment before a device's library added variables meant for this worker alone.
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ), compare=False, repr=False)
    joined: Machine | None = field(default=None, compare=False, repr=False)  # set if it was used before the job existed

    @cached_property
    def machine(self) -> Machine:
        """Files that this worker shares with the other workers of its machine."""
        rank = self.rank
        return self.joined or Machine(self.store.uri, self.spec.attempt_prefix, rank.first_of_machine, rank.local_world)

    @cached_property
    def shared(self) -> Store:
        """The workspace, for objects that don't change during the attempt: fetched once per machine."""
        return self.machine.reads(self.store)

    @property
    def config(self) -> Config:
        return self.spec.config

    @property
    def share(self) -> Share:
        return self.rank.share

    def keep(self, phases: Phases) -> None:
        """Record for the ledger that the work of these seconds is saved, even if this attempt is killed. Rank 0 only.

        A failed write is ignored: the seconds will count as lost.
        """
        with contextlib.suppress(OSError, StoreError):
            self.store.write(KEPT_WORK.of(self.spec), KeptWork(phases=phases).to_json())

    def fail(self, error: BaseException, stack: str = "") -> int:
        """Write the error to the log and to the worker's error file; return the exit code of its class.

        An existing error file is kept: later errors follow from the first.

        Args:
            stack: the stack of the work, if `error` was raised elsewhere.
        """
        named = classify_log(str(error)) if isinstance(error, RuntimeError) else None  # by Neuron SDK code
        failure, meaning = named or (classify(error), "")
        text = f"{meaning}\n{message_of(error, self.store.uri)}".strip() or type(error).__name__
        known = isinstance(error, StageError)
        record = WorkerFailure(
            rank=self.share.index,
            at=time.time(),
            failure=failure.value,
            message=text if known else f"{type(error).__name__}: {text}",
            traceback=stack or "".join(traceback.format_exception(error)),
            phases=self.clock.read(),
        )
        print(stack + record.message if known else record.traceback, file=sys.stderr, flush=True)
        try:
            self.store.create(FAILURE.of(self.spec, rank=self.share.index), record.to_json())
        except (OSError, StoreError) as unwritable:  # a full disk must not hide the first error
            print(f"the error file could not be written: {unwritable}", file=sys.stderr)
        return POLICIES[failure].exit_code

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield an empty local folder, deleted afterwards, in which outputs are made before they are committed."""
        with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
            yield Path(folder)


def read_spec(store: Store, key: str, stage: str) -> JobSpec:
    """Return the spec under `key`, which may end with `#` and the SHA-256 of the spec that was submitted.

    Raises:
        ConfigError: no spec exists, it is for another stage, or it was changed after submission.
    """
    key, _, sha256 = key.partition("#")
    try:
        content = store.read(key)
        if sha256 and hashlib.sha256(content).hexdigest() != sha256:
            raise ConfigError(
                f"{store.uri}/{key} is not the spec that was submitted: somebody changed it meanwhile, so nothing was "
                "run; see who may write to the workspace, and start the run again"
            )
        spec = JobSpec.model_validate_json(content)
    except FileNotFoundError as error:
        raise ConfigError(f"no job spec at {store.uri}/{key}") from error
    except ValidationError as error:
        raise ConfigError(f"{store.uri}/{key} is not a job spec that this version understands: {error}") from error
    if spec.stage.value != stage:
        raise ConfigError(f"{store.uri}/{key} is a spec for {spec.stage.value}, not for {stage}")
    return spec

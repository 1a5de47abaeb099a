"""What a stage's worker code is handed: its spec, the store, its place among the ranks, a clock of phases."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from configs.schema import Config
from infra.store import Store
from tasks.contracts import JobSpec, Phases

Phase = Literal["booting", "compiling", "restoring", "productive"]


@dataclass(frozen=True)
class Rank:
    """This process among the workers of one stage, as torchrun's environment says; one worker is rank 0 of 1."""

    index: int
    world: int
    local: int
    local_world: int = 1  # workers that share this one's machine, itself included

    @classmethod
    def from_environment(cls) -> Rank:
        return cls(
            index=int(os.environ.get("RANK", "0")),
            world=int(os.environ.get("WORLD_SIZE", "1")),
            local=int(os.environ.get("LOCAL_RANK", "0")),
            local_world=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        )

    @property
    def is_main(self) -> bool:
        return self.index == 0


class PhaseClock:
    """Adds up the seconds of each phase. Outside any phase the time counts as productive."""

    def __init__(self, booting: float) -> None:
        self._seconds: dict[Phase, float] = {"booting": booting, "compiling": 0.0, "restoring": 0.0, "productive": 0.0}
        self._phase: Phase = "productive"
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
        """Count seconds that passed as productive as another phase: compiling happens in the midst of steps."""
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

    @property
    def config(self) -> Config:
        return self.spec.config

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty local folder, gone afterwards; outputs are made here and committed to the store when whole."""
        with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
            yield Path(folder)

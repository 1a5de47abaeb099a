"""Clocks and locks of a process whose time the scheduler moves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tasks.foundation.clock import Clock, Repeating
from tests.simulation.scheduler import LONG_SECONDS, START, Machine, Never, Scheduler


class Guard:
    """In place of `threading.Lock`: a strand that waits for it ends its turn."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock, self._held = clock, False

    def __enter__(self) -> None:
        while self._held and self._clock.scheduler is not None:
            self._clock.scheduler.sleep(LONG_SECONDS, lambda: not self._held)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class SimulatedClock(Clock):
    """The clocks of the machine whose process has its turn."""

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None

    def Lock(self) -> Guard:  # noqa: N802
        """Return a lock, as the module `threading` does."""
        return Guard(self)

    def seconds(self) -> float:
        machine = self._machine()
        return START + self._time() + (machine.ahead if machine else 0.0)

    def uptime(self) -> float:
        machine = self._machine()
        return self._time() + (machine.booted_before if machine else 0.0)

    def boot(self) -> str:
        machine = self._machine()
        return machine.name if machine else "preparations"

    def sleep(self, seconds: float) -> None:
        if self.scheduler is not None:
            self.scheduler.sleep(seconds)

    def repeat(self, act: Callable[[], None], every_seconds: float, name: str) -> Repeating:
        return self.scheduler.repeat(act, every_seconds) if self.scheduler is not None else Never()

    @contextlib.contextmanager
    def of(self, scheduler: Scheduler) -> Iterator[None]:
        """Tell the time of this scheduler inside the block."""
        self.scheduler = scheduler
        try:
            yield
        finally:
            self.scheduler = None

    def _time(self) -> float:
        return self.scheduler.time if self.scheduler is not None else 0.0

    def _machine(self) -> Machine | None:
        strand = self.scheduler.current if self.scheduler is not None else None
        return strand.process.machine if strand is not None else None

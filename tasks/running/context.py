"""The caller's settings for a stage: one record in one context variable."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.contracts.jobs import Listener
    from tasks.contracts.runs import RunPlan
    from tasks.running.lineage_hold import LineageHold

from typing import Protocol

from configs.schema.compute import RetryConfig
from tasks.foundation.errors import POLICIES, FailureClass


class Budget:
    """Counts attempts, from the first one of this invocation on, and holds the delays between them.

    Attributes:
        delays: seconds before each retry. Prefect reads this very list after each failure, and it takes one list for
            all classes of failures; so each failure writes its own delay into it.
    """

    def __init__(self, retry: RetryConfig) -> None:
        self.attempts = retry.attempts
        self.used = 0
        self.delays = [0.0] * (retry.attempts - 1)
        self._failures = 0
        self._first: int | None = None

    def left(self, attempt: int) -> int:
        """Return the number of tries left, including attempt number `attempt`."""
        if self._first is None:
            self._first = attempt
        return max(1, self._first + self.attempts - attempt)

    def use(self, attempt: int) -> None:
        """Count the ended attempt number `attempt`, and the attempts before it."""
        first = attempt if self._first is None else self._first
        self.used = max(self.used, attempt - first + 1)

    def delay_after(self, failure: FailureClass) -> None:
        """Set the delay before the next try: the failure's own, doubled with each failure before it."""
        self.delays[:] = [POLICIES[failure].delay_seconds * 2**self._failures] * len(self.delays)
        self._failures += 1


class ServerSupervisor(Protocol):
    """The command of a flow run, as supervisor of its Prefect server."""

    def restart(self, seconds: float) -> None:
        """Restart the server if it is on this machine. Raises HostError: it did not answer within `seconds`."""
        ...

    def give_up(self, error: Exception) -> None:
        """End the process soon, with this error: Prefect's client would wait for the missing server."""
        ...


# Called in the task run of each ended stage, with plan, stage name and outcome, which is a StageError if the stage
# failed. Called again for the release after its publication, in the flow run.
PageMaker = Callable[["RunPlan", str, Any], None]


@dataclass(frozen=True)
class StageContext:
    """The settings of the stages in a block."""

    listener: Listener | None = None  # gets log lines and progress, as the log does
    page_maker: PageMaker | None = None  # makes a page of every stage that ends
    budget: Budget | None = None
    stop: threading.Event | None = None  # once set, stages end as cancelled
    was_done: bool = False  # the stage had a result already
    keeper: ServerSupervisor | None = None  # supervisor of the Prefect server
    lineages: tuple[LineageHold, ...] = ()  # the lineages that this process holds
    log_fields: Mapping[str, Any] = field(default_factory=dict)  # in every JSON log line


_context: ContextVar[StageContext | None] = ContextVar("stage_context", default=None)


def stage_context() -> StageContext:
    """Return the current settings."""
    return _context.get() or StageContext()


@contextlib.contextmanager
def override_context(**changes: Any) -> Iterator[None]:
    """Change fields of the context inside the block, in this thread and in threads with a copy of its context."""
    token = _context.set(replace(stage_context(), **changes))
    try:
        yield
    finally:
        _context.reset(token)


def note_done() -> None:
    """Record that the stage already had a result."""
    _context.set(replace(stage_context(), was_done=True))


def is_stopping() -> bool:
    """Return True if the stages here must end as cancelled."""
    stop = stage_context().stop
    return stop is not None and stop.is_set()

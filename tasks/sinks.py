"""Where a running stage's output goes: the log of the task run, thinned, and whoever listens.

It also waits on behalf of a flow run, and so notices when that is cancelled: a flow that runs in a plain process is
told of it by nobody else.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any
from uuid import UUID

import prefect.runtime.flow_run
from prefect.client.orchestration import get_client
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from infra.runner import Listener, Try
from tasks import structured
from tasks.errors import CancelledError, FailureClass
from tasks.live import LiveProgress
from tasks.progress import Progress

structured.install()  # here, as every flow comes by, also in the process that a Prefect worker starts for it

PROGRESS_SECONDS = 10.0  # between two lines of progress in a log
ASK_SECONDS = 3.0  # between two looks at the state of the flow run

_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


@contextlib.contextmanager
def stoppable(stop: threading.Event) -> Iterator[None]:
    """Let stages inside the block end as cancelled once `stop` is set: a thread is interrupted by nobody else."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def stopped() -> bool:
    """Whether the event of `stoppable` is set."""
    stop = _stop.get()
    return stop is not None and stop.is_set()


class Sinks:
    """Implements `Waiter`. `tries` are those that it was told of, in order."""

    def __init__(self, listener: Listener | None) -> None:
        self.flow_run: str = prefect.runtime.flow_run.id or ""
        self.tries: list[Try] = []
        self._listener = listener
        self._logger = logger()
        self._live = LiveProgress(self._logger)
        self._spoke_at = 0.0
        self._asked_at = time.monotonic()

    @property
    def last_attempt(self) -> int | None:
        return self.tries[-1].attempt if self.tries else None

    def log(self, line: str) -> None:
        self._logger.info("%s", line)
        if self._listener is not None:
            self._listener.log(line)

    def progress(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.done >= progress.total or now - self._spoke_at >= PROGRESS_SECONDS:
            self._spoke_at = now
            self._logger.info("%s %d/%d %s", progress.what, progress.done, progress.total, progress.note)
        self._live.progress(progress)
        if self._listener is not None:
            self._listener.progress(progress)

    def ended(self, failure: FailureClass | None = None) -> None:
        """Hear that the attempt is over: None, it is done."""
        self._live.end(failure)

    def tried(self, one: Try) -> None:
        """Keep it, in the place of what was told of the same try before."""
        self.tries = sorted([*(known for known in self.tries if known.attempt != one.attempt), one], key=_attempt)

    def pulse(self) -> None:
        """Raises CancelledError where the flow run was cancelled in the UI or by command, or its thread is to stop."""
        if stopped():
            raise CancelledError("stopped with the flow run that this one is part of; what was finished is kept")
        now = time.monotonic()
        if not self.flow_run or now - self._asked_at < ASK_SECONDS:
            return
        self._asked_at = now
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(UUID(self.flow_run)).state
        except Exception as error:  # the server may be away for a while; the work goes on
            self._logger.debug("the state of the flow run can't be asked for: %s", error)
            return
        if state is not None and (state.is_cancelling() or state.is_cancelled()):
            raise CancelledError("the flow run was cancelled in Prefect; what was finished is kept")


def logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    """The log of the task or flow run; outside of one, the project's own."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("millrace")


def _attempt(one: Try) -> int:
    return one.attempt

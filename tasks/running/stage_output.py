"""The output of a running stage: rate-limited to the log of the task run, and to a listener.

It also checks for a cancellation of its flow run, since nothing else interrupts a flow in a plain process.
"""

import logging
from typing import Any
from uuid import UUID

import prefect.runtime.flow_run
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL

from infra import prefect_health
from infra.store.base import Store
from tasks.contracts.runner import BatchAttempt, Listener, Progress
from tasks.foundation.clock import uptime
from tasks.foundation.errors import CancelledError, FailureClass, StoreError
from tasks.running import json_logs
from tasks.running.context import is_stopping, stage_context
from tasks.running.lineage_lock import check_lineages
from tasks.running.live_progress import LiveProgress
from tasks.runs import ledger
from tasks.runs.ledger import LedgerRecord

EVERY_SECONDS = 30.0


class Heartbeat:
    """The heartbeat of one attempt, which starts now."""

    def __init__(self, store: Store, record: LedgerRecord) -> None:
        self._store, self._record = store, record
        self._began = self._given = uptime()

    def give(self) -> None:
        """Record that the attempt still runs, at most every `EVERY_SECONDS`; a failed write is ignored."""
        now = uptime()
        if now - self._given < EVERY_SECONDS:
            return
        self._given = now
        try:
            ledger.see(self._store, self._record, now - self._began)
        except (OSError, StoreError) as error:
            logging.getLogger("millrace").debug("a sign of life was not written: %s", error)


json_logs.install()  # here, because every flow imports this module, even in a Prefect worker's process

PROGRESS_SECONDS = 10.0  # between two log lines of progress
ASK_SECONDS = 3.0  # between two requests for the state of the flow run


class StageOutput:
    """Implements `Waiter`. `tries` are the runner's reported attempts, in order."""

    def __init__(self, listener: Listener | None = None) -> None:
        self.flow_run: str = prefect.runtime.flow_run.id or ""
        self.tries: list[BatchAttempt] = []
        self.signs: Heartbeat | None = None  # heartbeat of the running attempt
        self._listener = listener or stage_context().listener
        self._logger = logger()
        self._live = LiveProgress(self._logger)
        self._logged_at = 0.0
        self._asked_at = uptime()

    @property
    def last_attempt(self) -> int | None:
        return self.tries[-1].attempt if self.tries else None

    def log(self, line: str) -> None:
        self._logger.info("%s", line)
        if self._listener is not None:
            self._listener.log(line)

    def progress(self, progress: Progress) -> None:
        now = uptime()
        if progress.done >= progress.total or now - self._logged_at >= PROGRESS_SECONDS:
            self._logged_at = now
            self._logger.info("%s %d/%d %s", progress.what, progress.done, progress.total, progress.note)
        self._live.progress(progress)
        if self._listener is not None:
            self._listener.progress(progress)

    def ended(self, failure: FailureClass | None = None) -> None:
        """Record the end of the attempt; None means success."""
        self._live.end(failure)

    def tried(self, one: BatchAttempt) -> None:
        """Keep the report, in place of an earlier one of the same attempt."""
        others = [known for known in self.tries if known.attempt != one.attempt]
        self.tries = sorted([*others, one], key=lambda known: known.attempt)

    def pulse(self) -> None:
        """Raise CancelledError if the flow run was cancelled in the UI or by a command, or its thread must stop.

        Raises SupersededError if another process took the lineage.
        """
        check_lineages()
        if self.signs is not None:
            self.signs.give()
        if is_stopping():
            raise CancelledError("stopped with its parent flow run; what was finished is kept")
        now = uptime()
        if not self.flow_run or now - self._asked_at < ASK_SECONDS:
            return
        state = state_of(UUID(self.flow_run))
        self._asked_at = uptime()
        if state is not None and (state.is_cancelling() or state.is_cancelled()):
            raise CancelledError("the flow run was cancelled in Prefect; what was finished is kept")


def state_of(flow_run: UUID) -> State[Any] | None:
    """Return the state of a flow run; None if the server does not answer, since the work continues without it.

    Prefect's client would block for 20 s if the server is away.
    """
    if not prefect_health.answers(PREFECT_API_URL.value() or ""):
        return None
    try:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(flow_run).state
    except Exception as error:
        logger().debug("the state of flow run %s can't be read: %s", flow_run, error)
        return None


def logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    """Return the logger of the task or flow run; outside of one, the project's logger."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("millrace")

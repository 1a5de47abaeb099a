"""The output of a running stage: rate-limited to the log of the task run, to a listener, and as progress on its page.

A separate thread writes the page, so that a slow or missing server delays nothing. Without a Prefect task there is
none. The output also checks for a cancellation of its flow run, since nothing else interrupts a flow in a plain
process.
"""

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import prefect.runtime.flow_run
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.objects import State
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger
from prefect.runtime import flow_run, task_run
from prefect.settings import PREFECT_API_URL

from infra import prefect_health
from tasks.contracts.jobs import BatchAttempt, Listener, Progress
from tasks.contracts.runs import RunPlan
from tasks.foundation.clock import duration, uptime
from tasks.foundation.errors import CancelledError, FailureClass, StoreError
from tasks.running import json_logs
from tasks.running.context import is_stopping, stage_context
from tasks.running.lineage_lock import check_lineages
from tasks.runs.ledger import OpenAttempt

UPDATE_SECONDS = 3.0  # least time between two updates
WINDOW_SECONDS = 60.0  # window of the speed; long enough to smooth an evaluation in the loop
QUIET_SECONDS = 10.0  # least time without a step before it is shown
QUIET_INTERVALS = 3.0  # least time without a step, in usual steps
UNITS = {"train": "step", "infer": "text"}  # shown stages, and the unit of their progress


class Throughput:
    """The speed of one piece of work over the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, Progress]] = deque()
        self._moved_at: float | None = None
        self._interval: float | None = None  # recent seconds between two advances

    def add(self, progress: Progress) -> None:
        """Add a measurement; a step back, as after a resume, begins a new window."""
        now = self._clock()
        if self._seen and progress.done < self._seen[-1][1].done:
            self._seen.clear()
            self._interval = None
        moved = not self._seen or progress.done > self._seen[-1][1].done
        self._seen.append((now, progress))
        if moved:
            self._moved_at = now
            if len(self._seen) > 1:
                self._interval = (now - self._seen[0][0]) / (len(self._seen) - 1)
        # Keep two of any age: slow work may not report within the window.
        while len(self._seen) > 2 and self._seen[-1][0] - self._seen[1][0] >= WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def last(self) -> Progress | None:
        return self._seen[-1][1] if self._seen else None

    @property
    def per_second(self) -> float | None:
        """Speed since the first measurement in the window; None with only one, or without an advance."""
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last.done - first.done) / (ended - began) if ended > began and last.done > first.done else None

    @property
    def quiet_seconds(self) -> float | None:
        """Seconds since the last advance if unusually long; None while it moves, at its end, or without a speed."""
        last = self.last
        if last is None or last.done >= last.total or self._moved_at is None or self._interval is None:
            return None
        quiet = self._clock() - self._moved_at
        return quiet if quiet > max(QUIET_SECONDS, QUIET_INTERVALS * self._interval) else None


def percent(progress: Progress) -> float:
    """Return the finished share, from 0 to 100."""
    return min(100.0, max(0.0, 100 * progress.done / progress.total)) if progress.total > 0 else 0.0


def sentence(title: str, progress: Progress, per_second: float | None, quiet_seconds: float | None = None) -> str:
    """Return `train 2026-W47: step 120 of 400, 3.2 steps/s, 1 min 20 s left, loss 1.93`, or `..., no step for 40 s`."""
    unit = UNITS[progress.what]
    parts = [f"{unit} {progress.done:,} of {progress.total:,}"]
    if quiet_seconds is not None:
        parts.append(f"no {unit} for {duration(quiet_seconds)}")
    elif per_second is not None:
        slow = per_second < 0.1
        parts.append(f"{1 / per_second:,.0f} s a {unit}" if slow else f"{per_second:,.1f} {unit}s/s")
        if progress.done < progress.total:
            parts.append(f"{duration((progress.total - progress.done) / per_second)} left")
    return f"{title}: {', '.join([*parts, *filter(None, [progress.note])])}"


class _Shown(NamedTuple):
    key: str  # key of the artifact
    percent: float
    description: str


class LiveProgress:
    """The progress of the current task run. Call `end`, or its thread stays."""

    def __init__(self, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._logger = logger
        self._task_run: str | None = task_run.id
        self._flow_run: str | None = flow_run.id
        self._title: str = task_run.name or ""
        plan = task_run.parameters.get("plan")
        self._lineage = plan.config.lineage if isinstance(plan, RunPlan) else ""
        self._pace = Throughput()
        self._shown: _Shown | None = None
        self._published: _Shown | None = None  # last published
        self._over = False
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    def progress(self, progress: Progress) -> None:
        """Show it soon; only training and inference are shown."""
        if self._task_run is None or progress.what not in UNITS:
            return
        with self._news:
            self._pace.add(progress)
            self._show_pace(progress)
            self._news.notify()
        if self._thread is None:
            # The thread needs Prefect's settings, which are in the caller's context.
            run = contextvars.copy_context().run
            self._thread = threading.Thread(target=run, args=(self._publish_news,), name="live progress", daemon=True)
            self._thread.start()

    def end(self, failure: str | None = None) -> None:
        """Show the end, or the progress before the failure. Returns at once, as `progress` does."""
        if self._thread is None:
            return
        with self._news:
            last = self._pace.last
            if last is not None and failure is not None:
                how_far = f"{UNITS[last.what]} {last.done:,} of {last.total:,}"
                self._show(percent(last), f"{self._title}: {failure} after {how_far}")
            elif last is not None:
                self._show(100.0, f"{self._title}: done, {UNITS[last.what]} {last.total:,} of {last.total:,}")
            self._over = True
            self._news.notify()

    def _show_pace(self, progress: Progress) -> None:
        said = sentence(self._title, progress, self._pace.per_second, self._pace.quiet_seconds)
        self._show(percent(progress), said)

    def _show(self, done: float, description: str) -> None:
        what = self._pace.last.what if self._pace.last else ""
        key = "-".join(filter(None, (what, "progress", self._lineage)))
        self._shown = _Shown(key, done, description)

    def _publish_news(self) -> None:
        """The thread: publish news, or the lack of them, at most every UPDATE_SECONDS."""
        artifact: UUID | None = None
        while True:
            with self._news:
                self._news.wait_for(lambda: self._over or self._shown != self._published, timeout=QUIET_SECONDS)
                last = self._pace.last
                if not self._over and last is not None and self._pace.quiet_seconds is not None:
                    self._show_pace(last)
                shown, over = self._shown, self._over
            if shown is not None and shown != self._published:
                artifact, self._published = self._put(artifact, shown), shown
            if over:
                return
            with self._news:
                self._news.wait_for(lambda: self._over, timeout=UPDATE_SECONDS)

    def _put(self, artifact: UUID | None, shown: _Shown) -> UUID | None:
        """Write the artifact and return its id; None if it could not be made, so that the next call tries again."""
        try:
            with get_client(sync_client=True) as client:
                if artifact is not None:
                    client.update_artifact(artifact, ArtifactUpdate(description=shown.description, data=shown.percent))
                    return artifact
                return client.create_artifact(
                    ArtifactCreate(
                        type="progress",
                        key=shown.key,
                        description=shown.description,
                        data=shown.percent,
                        task_run_id=UUID(self._task_run) if self._task_run else None,
                        flow_run_id=UUID(self._flow_run) if self._flow_run else None,
                    )
                ).id
        except Exception as error:  # the work continues without it
            self._logger.debug("progress can't be shown: %s", error)
            return artifact


EVERY_SECONDS = 30.0


class Heartbeat:
    """The heartbeat of one attempt, which starts now."""

    def __init__(self, attempt: OpenAttempt) -> None:
        self._attempt = attempt
        self._began = self._given = uptime()

    def give(self) -> None:
        """Record that the attempt still runs, at most every `EVERY_SECONDS`; a failed write is ignored."""
        now = uptime()
        if now - self._given < EVERY_SECONDS:
            return
        self._given = now
        try:
            self._attempt.see(now - self._began)
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

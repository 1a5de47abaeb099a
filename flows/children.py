"""Spans of a backfill as child flow runs in threads of this process: started, waited for, paused, stopped.

Interruptions reach the main thread alone: it tells the threads, and leaves when they have ended their workers.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol, TypeVar
from uuid import UUID

from prefect import Flow, flow_engine, get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.runtime import flow_run

from flows.child_runs import child_run
from tasks.backfill_plan import SpanPlan
from tasks.contracts import RunPlan
from tasks.errors import CancelledError
from tasks.sinks import ASK_SECONDS, logger, stoppable

R = TypeVar("R")

POLL_SECONDS = 0.1


class Hands:
    """What the main thread and the thread of one span hold in common."""

    def __init__(self, crew: Crew, span: SpanPlan, plan: RunPlan) -> None:
        self.span, self.plan = span, plan
        self.trained, self.waits = threading.Event(), threading.Event()
        self.may_release = threading.Event()
        self.failed = False
        self._errors: list[Exception] = []
        self._crew = crew

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Do one of the stages, not before a pause is over; what becomes of it is told, if it was left to do."""
        self._crew.check()
        left = name in self.span.left
        if left:
            self._crew.tell(self.span, name, "running", None)
        try:
            yield
        except BaseException as error:
            self.failed = True
            self._crew.tell(self.span, name, "run" if isinstance(error, Pause) else "failed", error)
            raise
        if left:
            self._crew.tell(self.span, name, "done", None)

    def try_step(self, name: str, work: Callable[[], R]) -> R | None:
        """As `step`, but a failure waits until `raise_first`."""
        try:
            with self.step(name):
                return work()
        except CancelledError:
            raise
        except Exception as error:
            self._errors.append(error)
            return None

    def raise_first(self) -> None:
        """Raise the first failure of `try_step`."""
        if self._errors:
            raise self._errors[0]

    def refused(self, *names: str) -> None:
        """The gates have said no, so these are not done."""
        for name in names:
            self._crew.tell(self.span, name, "refused", None)

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Be one of those that evaluate and infer at once."""
        while not self._crew.slots.acquire(timeout=POLL_SECONDS):
            self._crew.check()
        try:
            yield
        finally:
            self._crew.slots.release()

    def wait_to_release(self) -> bool:
        """Wait until all else is done; False if it never will be."""
        self.waits.set()
        while not self.may_release.wait(POLL_SECONDS):
            self._crew.check()
            if self._crew.no_release.is_set():
                return False
        return True


_hands: ContextVar[Hands] = ContextVar("hands")


def hands() -> Hands:
    """Those of the span whose flow runs here."""
    return _hands.get()


class Board(Protocol):
    """Who is told: of each stage from the spans' threads; often, and of pauses, from the main thread."""

    def tell(self, span: SpanPlan, what: str, step: str, error: BaseException | None) -> None: ...
    def paused(self, paused: bool) -> None: ...
    def flush(self) -> None: ...


class Crew:
    """The child flow runs of one backfill. Inside the block they run; at its end, however it comes, none is left."""

    def __init__(self, flow: Flow[..., Any], parallel: int, board: Board) -> None:
        self.slots = threading.Semaphore(parallel)
        self.no_release = threading.Event()
        self.tell = board.tell
        self._flow, self._board = flow, board
        self._stop, self._paused = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(parallel + 1, thread_name_prefix="span")  # one more, which trains
        self._busy = threading.Semaphore(parallel + 1)
        self._running: list[tuple[Hands, Future[None]]] = []
        self._suspended: State[Any] | None = None
        self._asked_at = time.monotonic()
        self._id = UUID(flow_run.id) if flow_run.id else None

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what runs after a failure or an interruption; after a suspension each comes to the end of its stage."""
        if error is not None and not isinstance(error, Pause):
            self._stop.set()
        self.no_release.set()
        self._paused.clear()
        while not all(future.done() for _, future in self._running):
            time.sleep(POLL_SECONDS)
        self._pool.shutdown(wait=True)
        self._board.flush()

    def start(self, span: SpanPlan, plan: RunPlan, key: str, parameters: dict[str, Any], tags: list[str]) -> None:
        """Run a span's flow as soon as a thread is free; with training, wait until it is trained or has failed."""
        self._until(lambda: self._busy.acquire(blocking=False))
        held = Hands(self, span, plan)
        context = contextvars.copy_context()
        future = self._pool.submit(context.run, self._run, held, key, parameters, tags)
        future.add_done_callback(lambda _: self._busy.release())
        self._running.append((held, future))
        if span.train == "run":
            self._until(lambda: held.trained.is_set() or future.done())

    def trained(self, span: SpanPlan) -> bool:
        """Whether the training of a started span came to its end."""
        return any(held.span == span and held.trained.is_set() for held, _ in self._running)

    def wait(self) -> None:
        """Wait until all started spans are done, or have come to where they wait for their release."""
        self._until(lambda: all(held.waits.is_set() or future.done() for held, future in self._running))

    def let_release(self, span: SpanPlan) -> None:
        """Let the last span be released, and wait for it."""
        for held, future in self._running:
            if held.span == span:
                held.may_release.set()
                self._until(future.done)

    def rest(self, seconds: float) -> None:
        """Wait a while in the main thread, where pauses and cancellations are noticed."""
        until = time.monotonic() + seconds
        self._until(lambda: time.monotonic() >= until)

    def check(self) -> None:
        """In a span's thread: wait while the backfill is paused. Raises CancelledError once it is to stop, or Pause."""
        while self._paused.is_set() and not self._stop.is_set():
            time.sleep(POLL_SECONDS)
        if self._suspended is not None:
            raise Pause(state=self._suspended)
        if self._stop.is_set():
            raise CancelledError("stopped with the backfill that this is part of; what was finished is kept")

    def _until(self, done: Callable[[], bool]) -> None:
        while self._look() or not done():
            self._board.flush()
            time.sleep(POLL_SECONDS)
        self._board.flush()

    def _look(self) -> bool:
        """Whether the backfill is paused now. Raises CancelledError if it was cancelled, Pause if it was suspended."""
        if time.monotonic() - self._asked_at >= ASK_SECONDS:
            self._asked_at = time.monotonic()
            state = self._state()
            if state is not None:
                if state.is_cancelling() or state.is_cancelled():
                    raise CancelledError("the backfill was cancelled in Prefect; what was finished is kept")
                if state.is_paused() and state.name == "Suspended":
                    self._suspended = state
                    raise Pause(state=state)
                self._pause(state.is_paused())
        return self._paused.is_set()

    def _pause(self, paused: bool) -> None:
        if paused == self._paused.is_set():
            return
        if paused:
            self._paused.set()
        else:
            self._paused.clear()
        self._board.paused(paused)

    def _state(self) -> State[Any] | None:
        if self._id is None:
            return None
        try:
            with get_client(sync_client=True) as client:
                return client.read_flow_run(self._id).state
        except Exception as error:  # the server may be away for a while; the work goes on
            logger().debug("the state of the backfill can't be asked for: %s", error)
            return None

    def _run(self, held: Hands, key: str, parameters: dict[str, Any], tags: list[str]) -> None:
        _hands.set(held)
        with stoppable(self._stop):
            error: BaseException | None = None
            try:
                run = child_run(self._flow, key, parameters, held.span.span.name, tags)
                self.tell(held.span, "flow_run", str(run.id), None)
                state: Any = flow_engine.run_flow(self._flow, flow_run=run, parameters=parameters, return_type="state")
                if state.is_failed() or state.is_crashed():
                    error = state.result(raise_on_failure=False)
            except Pause:  # it goes on with the backfill
                return
            except BaseException as failure:
                error = failure
            if error is not None and not held.failed:  # in none of its steps
                self.tell(held.span, held.span.left[0], "failed", error)

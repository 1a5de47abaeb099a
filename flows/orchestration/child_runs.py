"""Child flow runs with an idempotency key, and the spans of a backfill as child flow runs in threads of this process.

Prefect's own subflows have no such keys, so the same work run twice would show as two flow runs. Only the main thread
notices pauses, cancellations and interruptions. It passes them to the threads and waits for them.
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
from typing import Any, TypeVar
from uuid import UUID

from prefect import Flow, Task, flow_engine, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import FlowRunCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, FlowRunPolicy, State, StateType
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from prefect.states import Pending, Scheduled, to_state_create

from flows.orchestration.backfill_page import StatusPage
from flows.orchestration.cancelling import end_jobs
from tasks.campaigns.campaign import Cell
from tasks.contracts.runs import RunPlan
from tasks.foundation.errors import CancelledError
from tasks.running.context import override_context
from tasks.running.server_presence import await_server, repeat_until_served
from tasks.running.stage_output import ASK_SECONDS, state_of


def child_run(flow: Flow[..., Any], key: str, parameters: dict[str, Any], name: str, tags: list[str]) -> FlowRun:
    """Find the flow run with this key, or make it as a child of the current flow run; return it ready to run.

    A flow run that ended or was killed is set back to Scheduled. The caller holds a lock of the work, so that no other
    process runs it.
    """
    with get_client(sync_client=True) as client:
        by_key = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key]))
        found = client.read_flow_runs(flow_run_filter=by_key, limit=1)
        run = found[0] if found else _new_run(client, flow, key, parameters, name)
        client.update_flow_run(run.id, tags=sorted({*run.tags, *tags}))
        if run.state is None or run.state.type not in (StateType.SCHEDULED, StateType.PENDING):
            client.set_flow_run_state(run.id, Scheduled(), force=True)
        return client.read_flow_run(run.id)


def _new_run(
    client: SyncPrefectClient, flow: Flow[..., Any], key: str, parameters: dict[str, Any], name: str
) -> FlowRun:
    """Make a new flow run. Prefect records its parent through a task run in between."""
    parent = flow_run.id
    between = Task(flow.fn, name=flow.name)
    create = FlowRunCreate(
        flow_id=client.create_flow(flow),
        flow_version=flow.version,
        name=name,
        parameters=parameters,
        parent_task_run_id=client.create_task_run(between, UUID(parent), key, name=name).id if parent else None,
        state=to_state_create(Pending()),
        idempotency_key=key,
        empirical_policy=FlowRunPolicy(retries=flow.retries, retry_delay=int(flow.retry_delay_seconds or 0)),
    )
    response = client.request("POST", "/flow_runs/", json=create.model_dump(mode="json", exclude_unset=True))
    return FlowRun.model_validate(response.json())


def end_jobs_of_children(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """End the jobs of a cancelled flow run's children on AWS Batch. A hook, as `end_jobs`."""
    by_tag = FlowRunFilter(tags=FlowRunFilterTags(all_=[started_by_tag(str(flow_run.id))]))
    with get_client(sync_client=True) as client:
        children = client.read_flow_runs(flow_run_filter=by_tag)
    for child in children:
        with_settings = child.model_copy(update={"parameters": flow_run.parameters})
        end_jobs(flow, with_settings, state)


def started_by_tag(run: str) -> str:
    """Return the tag of a child flow run with the id of the flow run that last started it."""
    return f"asked-by:{run}"


R = TypeVar("R")

POLL_SECONDS = 0.1


class SpanRun:
    """One running span, shared by the main thread and the span's thread."""

    def __init__(self, pool: SpanRunPool, span: Cell, plan: RunPlan) -> None:
        self.span, self.plan = span, plan
        self.trained = threading.Event()
        self.waits_for_release, self.may_release = threading.Event(), threading.Event()
        self.failed = False
        self._errors: list[Exception] = []
        self._pool = pool

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run a stage, after any pause of the backfill; record its result if the stage was left to run."""
        self._pool.check()
        left = name in self.span.left
        if left:
            self._pool.record(self.span, name, "running", None)
        try:
            yield
        except BaseException as error:
            self.failed = True
            self._pool.record(self.span, name, "run" if isinstance(error, Pause) else "failed", error)
            raise
        if left:
            self._pool.record(self.span, name, "done", None)

    def try_step(self, name: str, work: Callable[[], R]) -> R | None:
        """Run a stage as `step` does, but keep an error for `raise_first` and return None."""
        try:
            with self.step(name):
                return work()
        except CancelledError:
            raise
        except Exception as error:
            self._errors.append(error)
            return None

    def raise_first(self) -> None:
        """Raise the first error of `try_step`, if any."""
        if self._errors:
            raise self._errors[0]

    def refuse(self, *names: str) -> None:
        """Record that these stages are not run because the gates refused the model."""
        for name in names:
            self._pool.record(self.span, name, "refused", None)

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one of the slots for evaluation and inference."""
        while not self._pool.slots.acquire(timeout=POLL_SECONDS):
            self._pool.check()
        try:
            yield
        finally:
            self._pool.slots.release()

    def wait_for_release(self) -> bool:
        """Wait until all other spans are done; return False if the release was cancelled."""
        self.waits_for_release.set()
        while not self.may_release.wait(POLL_SECONDS):
            self._pool.check()
            if self._pool.no_release.is_set():
                return False
        return True


_current: ContextVar[SpanRun] = ContextVar("span_run")


def current_span_run() -> SpanRun:
    """Return the span run of this thread."""
    return _current.get()


class SpanRunPool:
    """The child flow runs of one backfill. After the block, even after an error, none of them runs."""

    def __init__(self, flow: Flow[..., Any], parallel: int, page: StatusPage) -> None:
        self.slots = threading.Semaphore(parallel)
        self.no_release = threading.Event()
        self.record = page.record
        self._flow, self._page = flow, page
        self._stop, self._paused = threading.Event(), threading.Event()
        self._threads = ThreadPoolExecutor(parallel + 1, thread_name_prefix="span")  # one more for training
        self._free = threading.Semaphore(parallel + 1)
        self._running: list[tuple[SpanRun, Future[None]]] = []
        self._suspended: State[Any] | None = None
        self._polled_at = time.monotonic()
        self._id = UUID(flow_run.id) if flow_run.id else None

    def __enter__(self) -> SpanRunPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error stop the span runs; after a suspension let each finish its stage. Wait for all of them."""
        if error is not None and not isinstance(error, Pause):
            self._stop.set()
        self.no_release.set()
        self._paused.clear()
        while not all(future.done() for _, future in self._running):
            time.sleep(POLL_SECONDS)
        self._threads.shutdown(wait=True)
        self._page.flush()

    def start(self, span: Cell, plan: RunPlan, key: str, parameters: dict[str, Any], tags: list[str]) -> bool:
        """Start a span's flow run in a free thread. If it trains, wait for that; return False if it failed."""
        self._wait_until(lambda: self._free.acquire(blocking=False))
        run = SpanRun(self, span, plan)
        context = contextvars.copy_context()
        future = self._threads.submit(context.run, self._run, run, key, parameters, tags)
        future.add_done_callback(lambda _: self._free.release())
        self._running.append((run, future))
        if span.train != "run":
            return True
        self._wait_until(lambda: run.trained.is_set() or future.done())
        return run.trained.is_set()

    def wait(self) -> None:
        """Wait until each started span is done or waits for its release."""
        self._wait_until(lambda: all(run.waits_for_release.is_set() or future.done() for run, future in self._running))

    def release(self, span: Cell) -> None:
        """Allow the release of the last span, and wait for it."""
        for run, future in self._running:
            if run.span == span:
                run.may_release.set()
                self._wait_until(future.done)

    def sleep(self, seconds: float) -> None:
        """Sleep in the main thread, and notice pauses and cancellations meanwhile."""
        until = time.monotonic() + seconds
        self._wait_until(lambda: time.monotonic() >= until)

    def check(self) -> None:
        """Wait in a span's thread while the backfill is paused.

        Raises:
            CancelledError: the backfill stops.
            Pause: the backfill was suspended.
        """
        while self._paused.is_set() and not self._stop.is_set():
            time.sleep(POLL_SECONDS)
        if self._suspended is not None:
            raise Pause(state=self._suspended)
        if self._stop.is_set():
            raise CancelledError("stopped because its backfill stopped; finished stages are kept")

    def _wait_until(self, done: Callable[[], bool]) -> None:
        while self._poll() or not done():
            self._page.flush()
            time.sleep(POLL_SECONDS)
        self._page.flush()

    def _poll(self) -> bool:
        """Return True if the backfill is paused. Raises CancelledError if it was cancelled, Pause if suspended."""
        if time.monotonic() - self._polled_at >= ASK_SECONDS:
            self._polled_at = time.monotonic()
            state = state_of(self._id) if self._id else None
            if state is not None:
                if state.is_cancelling() or state.is_cancelled():
                    raise CancelledError("the backfill was cancelled in Prefect; finished stages are kept")
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
        self._page.update(state="Paused" if paused else "Running")

    def _run(self, run: SpanRun, key: str, parameters: dict[str, Any], tags: list[str]) -> None:
        _current.set(run)
        with override_context(stop=self._stop):
            error: BaseException | None = None
            try:
                await_server()
                name = run.span.span.name
                child = repeat_until_served(lambda: child_run(self._flow, key, parameters, name, tags))
                self.record(run.span, "flow_run", str(child.id), None)
                state: Any = flow_engine.run_flow(
                    self._flow, flow_run=child, parameters=parameters, return_type="state"
                )
                if state.is_failed() or state.is_crashed():
                    error = state.result(raise_on_failure=False)
            except Pause:  # the span continues with the backfill
                return
            except BaseException as failure:
                error = failure
            if error is not None and not run.failed:  # the error came from outside its stages
                self.record(run.span, run.span.left[0], "failed", error)

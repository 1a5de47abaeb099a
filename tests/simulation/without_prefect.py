"""The real flows in this process without a Prefect server: tasks are called, and pages are not made."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import flows.orchestration.announcing
import flows.orchestration.backfill_execution
import flows.orchestration.backfill_page
import flows.orchestration.child_runs
import flows.orchestration.events
import flows.orchestration.recorded_invocation
import flows.refresh
from flows.orchestration.child_runs import SpanRun
from flows.orchestration.span_flow import backfill_span
from tasks.foundation.clock import sleep
from tasks.foundation.errors import POLICIES, ServerError, StageError, classify
from tasks.running.context import Budget, override_context
from tasks.running.stage import StageTask


def _call(task: StageTask[Any, Any], plan: Any, *given: Any, **named: Any) -> Any:
    """Call a stage as Prefect does, with its retries."""
    budget = Budget(plan.config.retry)
    with override_context(budget=budget):
        for tried in range(1, plan.config.retry.attempts + 1):
            try:
                return task.fn(plan, *given, **named)
            except StageError as error:
                policy = POLICIES[classify(error)]
                if not policy.transient or budget.used >= budget.attempts or tried == plan.config.retry.attempts:
                    raise
                sleep(policy.delay_seconds * 2 ** (tried - 1))
    raise AssertionError("a stage has at least one try")


def _no_server(**_: object) -> None:
    raise ServerError("a simulation has no Prefect server")


class Pool:
    """The spans of a backfill one after the other, each in the thread of the backfill up to its release."""

    def __init__(self, flow: object, parallel: int, page: Any) -> None:
        self.record, self._page = page.record, page
        self.slots, self.no_release = contextlib.nullcontext(), None
        self._runs: list[tuple[SpanRun, dict[str, Any]]] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._page.flush(at_once=True)

    def check(self) -> None: ...

    def start(self, span: Any, plan: Any, key: str, parameters: dict[str, Any], tags: list[str]) -> bool:
        run = _InOneThread(self, span, plan)  # pyright: ignore[reportArgumentType]
        self._runs.append((run, parameters))
        self._go(run, parameters)
        return span.train != "run" or run.trained.is_set()

    def wait(self) -> None:
        self._page.flush(at_once=True)

    def release(self, span: Any) -> None:
        """Call the span's flow again: its stages are done, and now it may release."""
        for run, parameters in self._runs:
            if run.span == span:
                run.may_release.set()
                self._go(run, parameters)

    def _go(self, run: SpanRun, parameters: dict[str, Any]) -> None:
        def go() -> None:
            flows.orchestration.child_runs._current.set(run)
            backfill_span.fn(**parameters)

        try:
            contextvars.copy_context().run(go)
        except Exception as error:
            if not run.failed:
                self.record(run.span, run.span.left[0], "failed", error)
        self._page.flush(at_once=True)


class _InOneThread(SpanRun):
    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        yield

    def wait_for_release(self) -> bool:
        return self.may_release.is_set()


@contextlib.contextmanager
def without_prefect(deliver: Callable[..., None] = lambda *_, **__: None) -> Iterator[None]:
    """Call the flows' functions inside the block; `deliver` gets each event."""
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    page = flows.orchestration.backfill_page
    with contextlib.ExitStack() as held:
        for owner, name, stand_in in (
            (StageTask, "__call__", _call),
            (flows.orchestration.recorded_invocation, "make_stage_page", nothing),
            (flows.orchestration.recorded_invocation, "write_run_report", nothing),
            (flows.orchestration.recorded_invocation, "links", nothing),
            (flows.orchestration.announcing, "write_run_report", nothing),
            (flows.refresh, "make_stage_page", nothing),
            (flows.refresh, "end_dead_janitors", nothing),
            (flows.orchestration.events, "deliver", deliver),
            (flows.orchestration.backfill_execution, "SpanRunPool", Pool),
            (page, "get_client", _no_server),
            (page, "create_table_artifact", lambda *_: uuid4()),
            (page, "create_progress_artifact", lambda *_: uuid4()),
        ):
            held.enter_context(patch.object(owner, name, stand_in))
        yield

"""A Prefect server of a test's own, and what it knows about runs."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from infra.prefect_server import down, up

SECONDS = 30.0


class PrefectServer:
    """Started with an empty memory; `forget` gives it one again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.url = up(home).url

    def stop(self) -> None:
        EventsWorker.drain_all(timeout=SECONDS)  # or its thread holds the process back, looking for the server
        down(self.home)

    def forget(self) -> None:
        """Stop the server, delete all it had kept, start it again."""
        self.stop()
        shutil.rmtree(self.home)
        self.url = up(self.home).url

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Let flows in this process talk to this server."""
        with temporary_settings({PREFECT_API_URL: self.url, PREFECT_LOGGING_TO_API_ENABLED: False}):
            yield

    def last_run(self) -> FlowRun:
        """The flow run that started last."""
        with get_client(sync_client=True) as client:
            return max(client.read_flow_runs(), key=lambda run: str(run.start_time))

    def task_runs(self, run: FlowRun, count: int) -> list[TaskRun]:
        """The task runs of a flow run by start, once the server knows the end of `count`; it hears of them late."""
        of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
        deadline = time.monotonic() + SECONDS
        while True:
            with get_client(sync_client=True) as client:
                found = client.read_task_runs(flow_run_filter=of_run)
            if sum(task.state is not None and task.state.is_final() for task in found) >= count:
                return sorted(found, key=lambda task: str(task.start_time))
            assert time.monotonic() < deadline, f"after {SECONDS} s the server knows only {found}"
            time.sleep(0.1)

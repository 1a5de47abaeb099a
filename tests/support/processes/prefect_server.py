"""The Prefect server of the tests of one process, and what it knows about runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import Artifact, FlowRun, TaskRun
from prefect.events.worker import EventsWorker
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_LOGGING_TO_API_ENABLED,
    temporary_settings,
)

from infra import prefect_server
from infra.prefect_server import Server, down, up

SECONDS = 30.0
_MADE_AT_THE_FIRST_START = {"alembic_version", "block_type", "block_schema", "block_schema_reference"}


class PrefectServer:
    """A start costs 10 seconds, so it is shared; `forget` makes it as good as new."""

    def __init__(self, home: Path, tables: Path) -> None:
        self.home = home
        with database_of(home, tables):
            self.server: Server = up(home)
        # The server collects events before it writes them: events of one test may come during the next.
        self.since = datetime.now(UTC)

    @property
    def url(self) -> str:
        return self.server.url

    def rest(self) -> None:
        """Stand still until `wake`: an idle server takes a twentieth of a core."""
        EventsWorker.drain_all(timeout=SECONDS)  # or its thread waits for an answer
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self.server.pid is not None
        os.killpg(self.server.pid, number)

    def stop(self) -> None:
        self.wake()
        EventsWorker.drain_all(timeout=SECONDS)  # or its thread keeps the process alive, looking for the server
        down(self.home)

    def forget(self) -> None:
        """Delete all that the server was given: flows, runs, deployments, pools, automations, events."""
        EventsWorker.drain_all(timeout=SECONDS)
        with self.in_use(), get_client(sync_client=True) as client:
            for automation in client.read_automations():  # the server also keeps these in memory
                client.delete_automation(automation.id)
        forget(self.home)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Let flows in this process talk to this server; `events` returns events from now on."""
        self.since = datetime.now(UTC)
        with client_of(self.server), temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: False}):
            yield

    def last_run(self) -> FlowRun:
        """The flow run that started last."""
        with get_client(sync_client=True) as client:
            return max(client.read_flow_runs(), key=lambda run: str(run.start_time))

    def artifacts(self) -> list[Artifact]:
        """The artifacts of the flow run that started last, oldest first."""
        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[self.last_run().id]))
        with get_client(sync_client=True) as client:
            found = client.read_artifacts(artifact_filter=of_run)
        return sorted(found, key=lambda one: str(one.created))

    def events(self, name: str, resource: str, count: int = 1) -> list[dict[str, Any]]:
        """The events of this name about a resource, once `count` have arrived; fewer after a while."""
        EventsWorker.drain_all(timeout=SECONDS)
        since = {"since": self.since.isoformat()}
        asked = {"filter": {"event": {"name": [name]}, "resource": {"id": [resource]}, "occurred": since}}
        deadline = time.monotonic() + SECONDS
        while True:
            found = httpx.post(f"{self.url}/events/filter", json=asked, auth=credentials(self.server)).json()["events"]
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.2)

    def task_runs(self, run: FlowRun, count: int) -> list[TaskRun]:
        """The task runs of a flow run by start, once the server knows the end of `count`; it learns of them late."""
        of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
        deadline = time.monotonic() + SECONDS
        while True:
            with get_client(sync_client=True) as client:
                found = client.read_task_runs(flow_run_filter=of_run)
            if sum(task.state is not None and task.state.is_final() for task in found) >= count:
                return sorted(found, key=lambda task: str(task.start_time))
            assert time.monotonic() < deadline, f"after {SECONDS} s the server knows only {found}"
            time.sleep(0.1)


@contextlib.contextmanager
def client_of(server: Server) -> Iterator[None]:
    """Let Prefect's client in this process talk to a server of this machine."""
    password = prefect_server.read_password(Path(server.home))
    with temporary_settings({PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: password}):
        yield


def credentials(server: Server) -> tuple[str, str]:
    """User name and password, for requests without Prefect's client."""
    user, _, password = str(prefect_server.read_password(Path(server.home))).partition(":")
    return user, password


@contextlib.contextmanager
def database_of(home: Path, tables: Path) -> Iterator[None]:
    """Give the server that is started for `home` inside the block a copy of the database file `tables`.

    The first server of all makes its tables itself, which takes eight seconds; then `tables` is made from its database.
    """
    with contextlib.ExitStack() as held:
        lock = held.enter_context(tables.with_suffix(".lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        if tables.exists():
            held.close()  # the others may start at the same time
            home.mkdir(parents=True, exist_ok=True)
            shutil.copy(tables, home / "prefect.db")
            yield
            return
        yield
        with (
            contextlib.closing(sqlite3.connect(home / "prefect.db", timeout=SECONDS)) as made,
            contextlib.closing(sqlite3.connect(tables)) as copy,
        ):
            made.backup(copy)
        forget_all(tables)


def forget(home: Path) -> None:
    """Empty the database of the server of `home`, which may be running."""
    forget_all(home / "prefect.db")


def forget_all(file: Path) -> None:
    """Delete all rows but those that the server writes at its first start."""
    with contextlib.closing(sqlite3.connect(file, timeout=SECONDS)) as database, database:
        database.execute("PRAGMA foreign_keys = OFF")
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table not in _MADE_AT_THE_FIRST_START:
                database.execute(f"DELETE FROM {table}")

"""The queue of a lineage on a real server: which runs wait, and which do not."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator

import pytest
from prefect import flow
from prefect.client.orchestration import get_client

from flows.orchestration import lineage_queue
from flows.orchestration.lineage_queue import lineage_turn, queue_name
from infra.store.base import Conflict
from infra.store.directory import DirectoryStore


@flow(name="turn")
def take_turn(store: DirectoryStore, inside: threading.Event, leave: threading.Event) -> None:
    with lineage_turn(store, "main"):
        inside.set()
        assert leave.wait(30)


@pytest.fixture
def queue(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(lineage_queue, "POLL_SECONDS", 0.1)
    name = queue_name(store, "main")
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(name, limit=1)
        yield name
        client.delete_global_concurrency_limit_by_name(name)


def occupied(queue: str) -> int:
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(queue).active_slots


class Taker(threading.Thread):
    """A flow run that waits for its turn and keeps it until `leave` is set."""

    def __init__(self, store: DirectoryStore) -> None:
        super().__init__(daemon=True)
        self.inside, self.leave = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self._store = store
        self._context = contextvars.copy_context()  # in which Prefect knows its server

    def run(self) -> None:
        try:
            self._context.run(take_turn, self._store, self.inside, self.leave)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.leave.set()
        self.join(30)
        if self.error is not None:
            raise self.error


def test_runs_of_one_lineage_wait_for_each_other(store: DirectoryStore, queue: str) -> None:
    first, second = Taker(store), Taker(store)
    first.start()
    assert first.inside.wait(30)
    second.start()
    assert not second.inside.wait(1)
    assert occupied(queue) == 1
    first.end()
    assert second.inside.wait(30)
    second.end()
    assert occupied(queue) == 0


def test_a_slot_without_a_run_blocks_the_queue_only_for_a_while(
    store: DirectoryStore, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_queue, "PATIENCE_SECONDS", 0.5)
    with get_client(sync_client=True) as client:
        client.increment_concurrency_slots([queue], slots=1, mode="concurrency")  # for ever: without a lease
    taker = Taker(store)
    with store.lock("lineages/main.run"):  # a run is at work
        taker.start()
        assert not taker.inside.wait(1.5)
    assert taker.inside.wait(30)
    taker.end()


def test_without_a_queue_a_second_run_is_refused_after_a_while(store: DirectoryStore, impatient: None) -> None:
    taker = Taker(store)
    with store.lock("lineages/main.run"):
        taker.start()
        taker.join(30)
    with pytest.raises(Conflict, match=r"lineages/main\.run "):
        taker.end()

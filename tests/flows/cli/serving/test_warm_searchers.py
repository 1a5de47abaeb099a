"""The search workers that `millrace serve` keeps: how many, what starts and ends them, and one that hangs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.cli.serving import search_worker
from flows.cli.serving.search_page import MOST, WarmSearchers
from infra.store.directory import DirectoryStore
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer
from tasks.foundation.errors import HostError
from tasks.runs import releases
from tests.support.fakes.search_worker import SLOW, SLOW_SECONDS
from tests.support.workspace.past import write_past


@pytest.fixture
def store(unreal_workers: DirectoryStore) -> DirectoryStore:
    """With five releases."""
    write_past(unreal_workers, 5)
    return unreal_workers


@pytest.fixture
def five(store: DirectoryStore) -> list[Release]:
    return releases.history(store)


@pytest.fixture
def searchers(store: DirectoryStore) -> Iterator[WarmSearchers]:
    searchers = WarmSearchers(store)
    yield searchers
    searchers.close()


def processes(searchers: WarmSearchers, *asked: Release) -> list[int]:
    """The ids of the workers that answer."""
    found = []
    for answer in searchers.ask(asked, "lamp", 1):
        assert isinstance(answer, Answer)
        found.append(int(answer.hits[0].text.split()[1]))
    return found


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def ends(process: int, seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while runs(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not runs(process)


def test_two_people_who_compare_other_releases_keep_their_workers(
    five: list[Release], searchers: WarmSearchers
) -> None:
    one, two, three, four, _ = five
    first, second = processes(searchers, one, two), processes(searchers, three, four)
    for _ in range(2):
        assert (processes(searchers, one, two), processes(searchers, three, four)) == (first, second)
    searchers.close()
    assert all(ends(process) for process in (*first, *second))


def test_where_one_more_is_needed_the_one_that_was_idle_longest_ends(
    five: list[Release], searchers: WarmSearchers
) -> None:
    *four, fifth = five
    assert len(four) == MOST
    kept = processes(searchers, *four)
    assert processes(searchers, four[0]) == kept[:1]
    (new,) = processes(searchers, fifth)
    assert ends(kept[1])
    assert [runs(process) for process in (new, kept[0], *kept[2:])] == [True] * MOST


def test_a_worker_outlives_the_thread_of_a_request(five: list[Release], searchers: WarmSearchers) -> None:
    found: list[int] = []
    for _ in range(2):
        request = threading.Thread(target=lambda: found.extend(processes(searchers, five[0])))
        request.start()
        request.join()
        time.sleep(0.3)  # for the kernel's signal
    assert found[0] == found[1]


def test_a_worker_that_died_is_started_again(five: list[Release], searchers: WarmSearchers) -> None:
    (first,) = processes(searchers, five[0])
    os.kill(first, signal.SIGKILL)
    (second,) = processes(searchers, five[0])
    assert second != first
    (died,) = searchers.ask(five[:1], "die", 1)
    assert isinstance(died, HostError)
    assert str(died) == "the machine went away"
    assert processes(searchers, five[0]) != [second]


def test_a_worker_that_starts_keeps_nobody_waiting(five: list[Release], searchers: WarmSearchers) -> None:
    warm = processes(searchers, five[0])
    slow = five[1].model_copy(update={"number": SLOW})
    starting = threading.Thread(target=searchers.ask, args=([slow], "lamp", 1))
    starting.start()
    time.sleep(0.2)
    began = time.monotonic()
    assert processes(searchers, five[0]) == warm
    assert time.monotonic() - began < SLOW_SECONDS / 2
    assert starting.is_alive()
    starting.join()


def test_a_worker_that_hangs_is_ended_and_keeps_nobody_else_waiting(
    five: list[Release], searchers: WarmSearchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert search_worker.ANSWER_SECONDS == 20.0
    monkeypatch.setattr(search_worker, "ANSWER_SECONDS", 1.0)
    hung, well = processes(searchers, *five[:2])
    os.kill(hung, signal.SIGSTOP)
    began = time.monotonic()
    given_up, answer = searchers.ask(five[:2], "lamp", 1)
    assert time.monotonic() - began < 5
    assert isinstance(given_up, HostError)
    assert "search worker of release 1" in str(given_up)
    assert isinstance(answer, Answer)
    assert ends(hung)
    again, still = processes(searchers, *five[:2])
    assert (again != hung, still) == (True, well)


def test_serve_ends_at_once_although_a_worker_hangs(store: DirectoryStore) -> None:
    patched = f"from flows.cli.serving import search_worker; search_worker.WORKER = {search_worker.WORKER!r}"
    code = f"import sys, flows.cli; {patched}; sys.argv[0] = 'millrace'; flows.cli.main()"
    command = [sys.executable, "-c", code, "serve", "--port", "0", "--workspace", store.uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[0]

            def ask() -> bytes:
                with urllib.request.urlopen(f"{address}/?q=lamp", timeout=60) as answer:
                    return answer.read()

            workers = {int(number) for number in re.findall(rb"lamp (\d+)", ask())}
            assert len(workers) == 2
            for worker in workers:
                os.kill(worker, signal.SIGSTOP)
            asking = [threading.Thread(target=quietly, args=(ask,)) for _ in range(3)]
            for each in asking:
                each.start()
            time.sleep(0.5)
            began = time.monotonic()
            process.terminate()
            _, error = process.communicate(timeout=60)
            assert time.monotonic() - began < 10
            assert (process.returncode, error.splitlines()[-1]) == (0, "stopped")
            assert all(map(ends, workers))
            for each in asking:
                each.join()
        finally:
            process.kill()


def quietly(ask: Callable[[], object]) -> None:
    with contextlib.suppress(OSError):  # the server ended
        ask()

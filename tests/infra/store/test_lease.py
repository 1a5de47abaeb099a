import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from infra.store.base import Conflict, Store
from infra.store.directory import DirectoryStore
from infra.store.lease import HeldLease, InUse, Lease, hold, wait_for
from infra.store.s3_store import S3Store
from tasks.foundation.clock import boot as this_boot
from tasks.foundation.errors import StoreError

KEY = "compile/a1b2/LEASE"
START = 1_000_000.0


class Clock:
    """Stands still until a test sets it or a sleep moves it."""

    def __init__(self) -> None:
        self.time = START
        self.at_sleep: list[Callable[[], object]] = []  # what happens during the first sleep, the second, ...

    def __call__(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        if self.at_sleep:
            self.at_sleep.pop(0)()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def record(store: Store) -> Lease:
    return Lease.model_validate_json(store.read(KEY))


def leave_behind(store: Store, until: float = START + 60, boot: str = this_boot()) -> Lease:
    """The lease of a process that died."""
    lease = Lease(
        owner="dead", host="elsewhere", pid=7, expires_at=0, until=until, boot=this_boot() if boot is None else boot
    )
    store.write(KEY, lease.to_json())
    return lease


def test_the_record_names_the_holder_and_the_expiry(store, clock):
    with hold(store, KEY, 60, clock):
        lease = record(store)
        assert (lease.host, lease.pid, lease.until) == (socket.gethostname(), os.getpid(), START + 60)
        assert lease.expires_at == pytest.approx(time.time() + 60, abs=50)


def test_a_held_lease_is_refused_with_its_holder(store, clock):
    with (
        hold(store, KEY, 60, clock),
        pytest.raises(InUse, match=rf"{KEY} .* {os.getpid()} on .*UTC"),
        hold(store, KEY, 60, clock),
    ):
        pass


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_a_lease_is_free_as_soon_as_its_block_is_left(store, clock, error):
    with contextlib.suppress(ZeroDivisionError), hold(store, KEY, 60, clock):
        if error:
            raise error
    assert record(store).until <= clock()
    with hold(store, KEY, 60, clock) as second:
        second.check()


@pytest.mark.parametrize(("seconds", "free"), [(59.9, False), (60, True)])
def test_a_dead_holders_lease_is_free_when_it_expires(store, clock, seconds, free):
    leave_behind(store)
    clock.time += seconds
    if free:
        with hold(store, KEY, 60, clock):
            assert record(store).pid == os.getpid()
    else:
        with pytest.raises(InUse, match="process 7 on elsewhere"), hold(store, KEY, 60, clock):
            pass


def test_a_dead_holder_on_another_machine_is_known_by_a_lease_that_does_not_change(directory, clock):
    leave_behind(directory, until=clock() + 1e9, boot="another machine, whose clock means nothing here")
    for seconds in (0, 30, 29.9):
        clock.time += seconds
        with pytest.raises(InUse), hold(directory, KEY, 60, clock):
            pass
    leave_behind(directory, until=clock() + 2e9, boot="it lives: its lease was renewed")
    for seconds in (0, 59.9):
        clock.time += seconds
        with pytest.raises(InUse), hold(directory, KEY, 60, clock):
            pass
    clock.time += 0.1
    with hold(directory, KEY, 60, clock):
        assert record(directory).pid == os.getpid()


def test_a_bucket_says_how_old_a_lease_is_whatever_its_holders_clock_said(s3, clock, monkeypatch):
    store = S3Store(s3.new_workspace())
    leave_behind(store, until=0.0, boot="another machine")
    with pytest.raises(InUse), hold(store, KEY, 60, clock):
        pass
    monkeypatch.setattr(store, "age_seconds", lambda key: 61.0)
    with hold(store, KEY, 60, clock):
        assert record(store).pid == os.getpid()


def test_one_of_several_threads_gets_the_lease(store):
    barrier, left = threading.Barrier(4, timeout=30), threading.Barrier(4, timeout=30)
    outcomes = []

    def ask() -> None:
        barrier.wait()
        try:
            with hold(store, KEY):
                outcomes.append("held")
                left.wait()
        except Conflict:
            outcomes.append("refused")
            left.wait()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["held", "refused", "refused", "refused"]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"owner": "x", "host": "y", "pid": 1, "expires_at": 1e30}'])
def test_a_damaged_lease_is_named_and_left_alone(store, content):
    store.write(KEY, content)
    with pytest.raises(StoreError, match=f"{KEY} .*; delete it"), hold(store, KEY):
        pass
    assert store.read(KEY) == content


def test_a_renewal_extends_the_lease(store, clock):
    with hold(store, KEY, 60, clock) as held:
        clock.time += 59
        held.renew()
        assert record(store).until == START + 119
        clock.time += 59
        held.check()
        with pytest.raises(InUse), hold(store, KEY, 60, clock):
            pass


def test_a_thread_renews_the_lease(directory, clock):
    swapped = threading.Event()
    swap = directory.swap
    directory.swap = lambda *arguments, **named: (swap(*arguments, **named), swapped.set())
    with hold(directory, KEY, 0.03, clock):
        clock.time += 0.01
        assert swapped.wait(10)
        assert record(directory).until == pytest.approx(START + 0.04)


def test_the_thread_ends_with_the_block(directory):
    with hold(directory, KEY):
        assert any(thread.name == f"lease {KEY}" for thread in threading.enumerate())
    assert not any(thread.name == f"lease {KEY}" for thread in threading.enumerate())


def test_a_lease_that_is_not_renewed_in_time_fails_its_check(store, clock):
    with hold(store, KEY, 60, clock) as held:
        clock.time += 59.9
        held.check()
        clock.time += 0.1
        with pytest.raises(StoreError, match=f"{KEY} was not renewed"):
            held.check()


def test_an_expired_lease_that_is_still_free_can_be_renewed(store, clock):
    with hold(store, KEY, 60, clock) as held:
        clock.time += 1000
        held.renew()
        held.check()


def test_a_lease_taken_by_another_holder_stays_lost(store, clock):
    with hold(store, KEY, 60, clock) as held:
        clock.time += 60
        with hold(store, KEY, 60, clock) as other:
            held.renew()
            with pytest.raises(StoreError, match=f"{KEY} .* {os.getpid()}"):
                held.check()
            other.check()
        held.renew()
        with pytest.raises(StoreError, match="was lost"):
            held.check()


def test_leaving_a_lost_lease_keeps_the_new_holders_lease(store, clock):
    with hold(store, KEY, 60, clock):
        clock.time += 60
        other = leave_behind(store, clock.time + 60)
    assert record(store) == other


def test_a_deleted_lease_is_lost(store, clock):
    with hold(store, KEY, 60, clock) as held:
        store.delete(KEY)
        held.renew()
        with pytest.raises(StoreError, match=r"lost .*removed it"):
            held.check()


class Flaky(DirectoryStore):
    """Refuses a swap, or does it and reports a failure."""

    trouble = ""

    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        if self.trouble != "refuses":
            super().swap(key, data, expected)
        if self.trouble:
            raise StoreError("the network is gone")


@pytest.mark.parametrize("trouble", ["refuses", "loses replies"])
def test_a_failed_renewal_can_be_repeated(tmp_path, clock, trouble):
    store = Flaky(tmp_path)
    with hold(store, KEY, 60, clock) as held:
        store.trouble = trouble
        clock.time += 20
        held.renew()
        held.check()
        store.trouble = ""
        clock.time += 20
        held.renew()
        clock.time += 59
        held.check()
    assert record(store).until <= clock()


def test_a_lost_lease_says_why_it_was_not_renewed_and_leaving_it_raises_nothing(tmp_path, clock):
    store = Flaky(tmp_path)
    with hold(store, KEY, 60, clock) as held:
        store.trouble = "refuses"
        held.renew()
        clock.time += 60
        with pytest.raises(StoreError, match=r"\(the network is gone\)"):
            held.check()
    assert record(store).until == START + 60


def waiting(store: Store, clock: Clock, **options: Any) -> AbstractContextManager[HeldLease | None]:
    """Wait for the lease; the test fails if it has to wait and gives no `say`."""

    def fail(line: str) -> None:
        raise AssertionError(f"it should not wait: {line}")

    options = {"say": fail, **options}
    return wait_for(store, KEY, 60, clock=clock, sleep=clock.sleep, **options)


def test_a_free_lease_is_held_without_waiting(store, clock):
    with waiting(store, clock) as held:
        assert isinstance(held, HeldLease)
        held.check()
    assert clock.time == START


def test_finished_work_needs_no_lease(store, clock):
    with waiting(store, clock, until=lambda: True) as held:
        assert held is None
    assert not store.exists(KEY)


def test_waiting_for_a_dead_builder_ends_when_its_lease_expires(store, clock):
    leave_behind(store)
    lines = []
    with waiting(store, clock, until=lambda: False, say=lines.append, poll_seconds=25) as held:
        assert held is not None
        assert clock.time == START + 75
    assert len(lines) == 1
    assert "process 7 on elsewhere" in lines[0]


def test_each_builder_is_named_once_while_waiting(store, clock):
    leave_behind(store)
    second = Lease(owner="second", host="another-host", pid=8, expires_at=0, until=START + 70, boot=this_boot())
    clock.at_sleep = [lambda: None, lambda: store.write(KEY, second.to_json())]
    lines = []
    with waiting(store, clock, say=lines.append, poll_seconds=20):
        pass
    assert ["another-host" in line for line in lines] == [False, True]


def test_waiting_ends_when_the_builder_is_done(store, clock):
    leave_behind(store, until=1e9)
    clock.at_sleep = [lambda: None, lambda: store.write("compile/a1b2/built", b"")]
    with waiting(store, clock, until=lambda: store.exists("compile/a1b2/built"), say=lambda line: None) as held:
        assert held is None
        assert not clock.at_sleep


def test_work_finished_just_before_the_lease_was_free_is_not_repeated(store, clock):
    answers = iter([False, True])
    with waiting(store, clock, until=lambda: next(answers)) as held:
        assert held is None
    assert record(store).until <= clock()


def test_a_conflict_raised_in_the_block_passes_through(store, clock):
    with pytest.raises(Conflict, match="of its own"), waiting(store, clock):
        raise Conflict("of its own")
    assert record(store).until <= clock()

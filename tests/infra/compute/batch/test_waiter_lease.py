"""The lease of whoever waits for a job."""

from __future__ import annotations

import time

import pytest

from infra.compute.batch import waiter_lease
from infra.compute.batch.waiter_lease import WaiterLease, waited_for_until
from infra.store.directory import DirectoryStore
from infra.store.lease import Lease, hold
from tasks.foundation.errors import StoreError

PREFIX = "runs/f00d/train/attempt-1"


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_it_is_known_that_somebody_waits_and_when_they_left(store) -> None:
    assert waited_for_until(store, PREFIX) == 0.0
    with WaiterLease(store, PREFIX):
        assert waited_for_until(store, PREFIX) > time.time() + 30
    assert waited_for_until(store, PREFIX) <= time.time()


def test_a_dead_waiters_lease_keeps_nobody_out_and_is_taken_when_it_ends(store, monkeypatch) -> None:
    monkeypatch.setattr(waiter_lease, "_TRY_AGAIN_SECONDS", 0.0)
    now = time.time()
    dead = Lease(owner="dead", host="h", pid=1, expires_at=now + 60)
    store.write(f"{PREFIX}/waiter.json", dead.to_json())
    with WaiterLease(store, PREFIX) as waiting:
        assert Lease.model_validate_json(store.read(f"{PREFIX}/waiter.json")) == dead
        store.write(f"{PREFIX}/waiter.json", dead.model_copy(update={"expires_at": now - 1}).to_json())
        waiting.keep()
        assert waited_for_until(store, PREFIX) > now + 30
        waiting.keep()  # nothing more: it is held


def test_it_is_a_lease_like_all_others(store) -> None:
    with hold(store, f"{PREFIX}/waiter.json"):
        assert waited_for_until(store, PREFIX) > time.time()


def test_what_is_no_lease_is_named(store) -> None:
    store.write(f"{PREFIX}/waiter.json", b"{}")
    with pytest.raises(StoreError, match=r"waiter\.json is not a valid lease"):
        waited_for_until(store, PREFIX)

"""The lease of a process that waits for a job."""

import time

import pytest

from infra.compute.batch import waiter_lease
from infra.compute.batch.waiter_lease import WaiterLease, find_lease_end
from infra.store.lease import Lease
from tasks.foundation.clock import boot, uptime
from tasks.foundation.errors import StoreError

PREFIX = "runs/f00d/train/attempt-1"


def test_the_lease_shows_that_a_waiter_is_there_and_when_it_left(store) -> None:
    assert find_lease_end(store, PREFIX) == 0.0
    with WaiterLease(store, PREFIX):
        assert find_lease_end(store, PREFIX) > time.time() + 30
    assert find_lease_end(store, PREFIX) <= time.time()


def test_a_dead_waiters_lease_stops_no_waiter_and_is_taken_when_it_expires(store, monkeypatch) -> None:
    monkeypatch.setattr(waiter_lease, "_TRY_AGAIN_SECONDS", 0.0)
    now = time.time()
    dead = Lease(owner="dead", host="h", pid=1, expires_at=now + 60, boot=boot(), until=uptime() + 60)
    store.write(f"{PREFIX}/waiter.json", dead.to_json())
    with WaiterLease(store, PREFIX) as waiting:
        assert Lease.model_validate_json(store.read(f"{PREFIX}/waiter.json")) == dead
        store.write(f"{PREFIX}/waiter.json", dead.model_copy(update={"until": uptime() - 1}).to_json())
        waiting.keep()
        assert find_lease_end(store, PREFIX) > now + 30
        waiting.keep()  # changes nothing: the lease is held


def test_a_damaged_lease_is_named(store) -> None:
    store.write(f"{PREFIX}/waiter.json", b"{}")
    with pytest.raises(StoreError, match=r"waiter\.json is not a valid lease"):
        find_lease_end(store, PREFIX)

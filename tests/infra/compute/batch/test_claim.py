"""The claim on an attempt's job, and the lease of a process that waits for it."""

import time

import pytest

from infra.compute.batch import claim
from infra.compute.batch.claim import (
    Claim,
    State,
    WaiterLease,
    advance,
    claims_below,
    find_lease_end,
    make_claim,
    owner_of,
    read_claim,
)
from infra.store.base import Conflict
from infra.store.lease import Lease
from tasks.foundation.clock import boot, uptime
from tasks.foundation.errors import StoreError

PREFIX = "runs/f00d/train/attempt-1"
CLAIM = Claim(name="n", state="claimed", job_id=None, queue="q", flow_run="", claimed_at="2026-11-21T00:00:00+00:00")


def test_only_the_first_claim_is_made(store) -> None:
    assert make_claim(store, PREFIX, CLAIM)
    assert not make_claim(store, PREFIX, CLAIM.model_copy(update={"name": "other"}))
    assert read_claim(store, PREFIX) == CLAIM


def test_without_a_claim_none_is_read_or_advanced(store) -> None:
    assert read_claim(store, PREFIX) is None
    assert advance(store, PREFIX, "ending") is None


@pytest.mark.parametrize(
    ("was", "to", "then"),
    [
        ("claimed", "submitted", "submitted"),
        ("submitted", "ending", "ending"),
        ("ending", "submitted", "ending"),
        ("over", "ending", "over"),
        ("claimed", "over", "over"),
    ],
)
def test_a_claims_state_only_goes_forward_and_its_job_is_always_kept(store, was: State, to: State, then: State) -> None:
    make_claim(store, PREFIX, CLAIM.model_copy(update={"state": was}))
    moved = advance(store, PREFIX, to, "job-1")
    assert moved == read_claim(store, PREFIX)
    assert moved is not None
    assert (moved.state, moved.job_id) == (then, "job-1")
    assert advance(store, PREFIX, to) == moved, "the job is kept"


def test_a_change_made_at_the_same_time_is_not_lost(store, monkeypatch) -> None:
    make_claim(store, PREFIX, CLAIM)
    swap = store.swap

    def swap_after_another(key, data, expected) -> None:
        monkeypatch.setattr(store, "swap", swap)
        advance(store, PREFIX, "ending")
        swap(key, data, expected)

    monkeypatch.setattr(store, "swap", swap_after_another)
    moved = advance(store, PREFIX, "submitted", "job-1")
    assert moved is not None
    assert (moved.state, moved.job_id) == ("ending", "job-1")


def test_a_claim_that_others_always_change_is_a_conflict(store, monkeypatch) -> None:
    make_claim(store, PREFIX, CLAIM)

    def refuse(key, data, expected) -> None:
        raise Conflict("changed")

    monkeypatch.setattr(store, "swap", refuse)
    with pytest.raises(Conflict, match="try again"):
        advance(store, PREFIX, "submitted")


def test_a_damaged_claim_is_named(store) -> None:
    store.write(f"{PREFIX}/job.json", b"{}")
    with pytest.raises(StoreError, match=r"attempt-1/job\.json"):
        read_claim(store, PREFIX)


def test_all_claims_of_a_workspace_are_found(store) -> None:
    for attempt in (1, 2):
        make_claim(store, f"runs/f00d/train/attempt-{attempt}", CLAIM)
    make_claim(store, "runs/beef/infer/attempt-1", CLAIM)
    store.write("runs/f00d/train/attempt-2/spec.json", b"{}")
    assert set(claims_below(store, "runs/f00d/train")) == {f"runs/f00d/train/attempt-{n}" for n in (1, 2)}
    assert len(claims_below(store, "runs")) == 3


@pytest.mark.parametrize(("written", "owner"), [(b'{"job": "j"}', "j"), (b"[]", None), (b"{", None), (None, None)])
def test_the_owner_is_read_from_its_record(store, written, owner) -> None:
    if written:
        store.write(f"{PREFIX}/owner.json", written)
    assert owner_of(store, PREFIX) == owner


JOB = "runs/f00d/train/attempt-1"


def test_the_lease_shows_that_a_waiter_is_there_and_when_it_left(store) -> None:
    assert find_lease_end(store, JOB) == 0.0
    with WaiterLease(store, JOB):
        assert find_lease_end(store, JOB) > time.time() + 30
    assert find_lease_end(store, JOB) <= time.time()


def test_a_dead_waiters_lease_stops_no_waiter_and_is_taken_when_it_expires(store, monkeypatch) -> None:
    monkeypatch.setattr(claim, "_TRY_AGAIN_SECONDS", 0.0)
    now = time.time()
    dead = Lease(owner="dead", host="h", pid=1, expires_at=now + 60, boot=boot(), until=uptime() + 60)
    store.write(f"{JOB}/waiter.json", dead.to_json())
    with WaiterLease(store, JOB) as waiting:
        assert Lease.model_validate_json(store.read(f"{JOB}/waiter.json")) == dead
        store.write(f"{JOB}/waiter.json", dead.model_copy(update={"until": uptime() - 1}).to_json())
        waiting.keep()
        assert find_lease_end(store, JOB) > now + 30
        waiting.keep()  # changes nothing: the lease is held


def test_a_damaged_lease_is_named(store) -> None:
    store.write(f"{JOB}/waiter.json", b"{}")
    with pytest.raises(StoreError, match=r"waiter\.json is not"):
        find_lease_end(store, JOB)

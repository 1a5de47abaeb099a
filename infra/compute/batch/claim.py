"""The claim on an attempt's job: `<attempt>/job.json`, written before the job is submitted, changed only by swaps.

It records that a job exists or may exist, and that a process asked for its end. The process that waits for the job
holds a lease; `millrace reap` spares a job with a held one.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Literal, get_args

from pydantic import Field

from infra.store.base import Conflict, Store
from infra.store.lease import TTL_SECONDS, Lease, LeaseInUse, hold, seconds_left
from infra.store.records import find_record, find_with_bytes
from tasks.foundation.clock import seconds, uptime
from tasks.foundation.records import Record

State = Literal["claimed", "submitted", "ending", "over"]

_FILE = "job.json"
_OWNER = "owner.json"
_ORDER: tuple[State, ...] = get_args(State)
_ROUNDS = 5


class Claim(Record):
    """The state only moves forward: claimed, submitted, ending (a process asked for the job's end), over."""

    version: Literal[1] = 1
    name: str = Field(description="name of the job")
    state: State
    job_id: str | None = Field(description="id of the job; null: unknown, a job may exist")
    queue: str
    flow_run: str = Field(description="id of the Prefect flow run; empty outside of one")
    claimed_at: str = Field(description="ISO 8601 in UTC")


class Owner(Record):
    """`owner.json` of an attempt: the job that runs it, written by its launcher, in case two were submitted."""

    job: str = Field(description="id of the job")


def read_claim(store: Store, prefix: str) -> Claim | None:
    """Return the claim of the attempt in the folder `prefix`; None if it has none.

    Raises:
        StoreError: the file is not a valid claim.
    """
    return _read(store, prefix)[1]


def make_claim(store: Store, prefix: str, claim: Claim) -> bool:
    """Make the claim; return False if another one exists already."""
    try:
        store.create(f"{prefix}/{_FILE}", claim.to_json())
    except Conflict:
        return False
    return True


def advance(store: Store, prefix: str, state: State, job_id: str | None = None) -> Claim | None:
    """Move the claim forward to `state`, unless it is further already, and record the job.

    Return the new claim; None without a claim.

    Raises:
        Conflict: other processes keep changing it.
    """
    for _ in range(_ROUNDS):
        raw, claim = _read(store, prefix)
        if claim is None:
            return None
        later = max(claim.state, state, key=_ORDER.index)
        moved = claim.model_copy(update={"state": later, "job_id": job_id or claim.job_id})
        if moved == claim:
            return claim
        try:
            store.swap(f"{prefix}/{_FILE}", moved.to_json(), expected=raw)
        except Conflict:
            continue
        return moved
    raise Conflict(f"{store.uri}/{prefix}/{_FILE} was changed by other processes {_ROUNDS} times in a row; try again")


def claims_below(store: Store, prefix: str) -> dict[str, Claim]:
    """Return all claims of a stage, a run or (prefix `runs`) the workspace, by the folder of their attempt."""
    found = {}
    for key in store.list(prefix):
        folder, _, name = key.rpartition("/")
        if name == _FILE and (claim := read_claim(store, folder)) is not None:
            found[folder] = claim
    return found


def owner_of(store: Store, prefix: str) -> str | None:
    """Return the id of the job whose containers have begun the attempt; None if none has, or the file is damaged."""
    try:
        return Owner.model_validate_json(store.read(f"{prefix}/{_OWNER}")).job
    except (FileNotFoundError, ValueError):
        return None


def _read(store: Store, prefix: str) -> tuple[bytes | None, Claim | None]:
    return find_with_bytes(store, f"{prefix}/{_FILE}", Claim, "move the file away once no job of that attempt is left")


_LEASE_FILE = "waiter.json"
_TRY_AGAIN_SECONDS = 5.0


class WaiterLease:
    """The lease, taken as soon as it is free: a killed waiter leaves its lease behind for a minute.

    It does not exclude other waiters: the lineage's lock does.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._key = store, f"{prefix}/{_LEASE_FILE}"
        self._stack = contextlib.ExitStack()
        self._next = 0.0

    def __enter__(self) -> WaiterLease:
        self.keep()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def keep(self) -> None:
        """Take the lease if this process doesn't hold it yet. Call this every few seconds."""
        if uptime() < self._next:
            return
        self._next = uptime() + _TRY_AGAIN_SECONDS
        with contextlib.suppress(LeaseInUse):
            self._stack.enter_context(hold(self._store, self._key, TTL_SECONDS))
            self._next = float("inf")


def find_lease_end(store: Store, prefix: str) -> float:
    """Return the end of the lease on the job of the attempt in the folder `prefix`, in seconds since 1970.

    0 if no process ever waited.

    Raises:
        StoreError: the file is not a valid lease.
    """
    key = f"{prefix}/{_LEASE_FILE}"
    lease = find_record(store, key, Lease, "delete it once no process waits for the job")
    if lease is None:
        return 0.0
    left = seconds_left(store, key, lease)
    return lease.expires_at if left is None else seconds() + left

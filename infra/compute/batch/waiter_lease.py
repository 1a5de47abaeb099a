"""The lease of the process that waits for a job; `millrace reap` spares a job with a held lease."""

from __future__ import annotations

import contextlib
from types import TracebackType

from infra.store.base import Store
from infra.store.lease import TTL_SECONDS, Lease, LeaseInUse, hold, seconds_left
from infra.store.records import find_record
from tasks.foundation.clock import seconds, uptime

_FILE = "waiter.json"
_TRY_AGAIN_SECONDS = 5.0


class WaiterLease:
    """The lease, taken as soon as it is free: a killed waiter leaves its lease behind for a minute.

    It does not exclude other waiters: the lineage's lock does.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._key = store, f"{prefix}/{_FILE}"
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
    key = f"{prefix}/{_FILE}"
    lease = find_record(store, key, Lease, "delete it once no process waits for the job")
    if lease is None:
        return 0.0
    left = seconds_left(store, key, lease)
    return lease.expires_at if left is None else seconds() + left

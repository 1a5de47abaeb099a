"""Who waits for a job holds a lease beside its claim, so that `millrace reap` leaves the job alone."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType

from pydantic import ValidationError

from infra.lease import TTL_SECONDS, InUse, Lease, hold
from infra.store import Store
from tasks.errors import StoreError

_FILE = "waiter.json"
_TRY_AGAIN_SECONDS = 5.0


class Attendance:
    """The lease, taken as soon as it can be had: a waiter that was killed leaves its own for a minute.

    It keeps nobody out. That one process at a time works on a stage is the care of whoever runs it.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._key = store, f"{prefix}/{_FILE}"
        self._stack = contextlib.ExitStack()
        self._next = 0.0

    def __enter__(self) -> Attendance:
        self.keep()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def keep(self) -> None:
        """Take the lease if it was somebody else's so far. To be called now and then."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _TRY_AGAIN_SECONDS
        with contextlib.suppress(InUse):
            self._stack.enter_context(hold(self._store, self._key, TTL_SECONDS))
            self._next = float("inf")


def attended_until(store: Store, prefix: str) -> float:
    """When whoever waits for the job of the attempt in the folder `prefix` has to show again that it lives, or when it
    stopped waiting, in seconds since the epoch; 0 where nobody ever waited.

    Raises:
        StoreError: what lies there is no lease.
    """
    try:
        return Lease.model_validate_json(store.read(f"{prefix}/{_FILE}")).expires_at
    except FileNotFoundError:
        return 0.0
    except ValidationError as error:
        raise StoreError(f"{store.uri}/{prefix}/{_FILE} is not a lease; delete it once nobody works on this") from error

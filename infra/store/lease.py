"""A lease: the exclusive right to do something, by name, on any store, as long as it is renewed.

Unlike the kernel's locks it works across machines, so it can only end with its holder by expiring: clocks must agree
to within a few seconds. It prevents double work; what must never be overwritten is written conditionally.
"""

import contextlib
import datetime as dt
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from pydantic import Field

from infra.store.base import Conflict, Store
from infra.store.records import find_with_bytes
from tasks.foundation.errors import StageError, StoreError
from tasks.foundation.records import Record

TTL_SECONDS = 60.0
_RENEWALS = 3  # in the time to live, so that two may fail
_YEAR_10000 = 253_402_300_800.0  # which no calendar here can show
_ROUNDS = 5  # of reading and writing again, when other processes come and go in between


class Lease(Record):
    """The holder, and when it expires unless renewed, in seconds since 1970; or when it was released."""

    owner: str
    host: str
    pid: int
    expires_at: float = Field(ge=0, lt=_YEAR_10000)


class InUse(Conflict):
    """Another process holds the lease."""

    def __init__(self, where: str, lease: Lease) -> None:
        until = dt.datetime.fromtimestamp(lease.expires_at, dt.UTC)
        super().__init__(
            f"{where} is in use by process {lease.pid} on {lease.host}, whose lease runs until "
            f"{until:%Y-%m-%d %H:%M:%S} UTC unless renewed; wait for it or stop it"
        )
        self.lease = lease


class Held:
    """A lease that this process holds; `hold` and `wait_for` make them."""

    def __init__(self, store: Store, key: str, ttl_seconds: float, clock: Callable[[], float]) -> None:
        self._store, self._key, self._ttl_seconds, self._clock = store, key, ttl_seconds, clock
        self._where = f"{store.uri}/{key}"
        self._lease = Lease(owner=uuid.uuid4().hex, host=socket.gethostname(), pid=os.getpid(), expires_at=0.0)
        self._taken_by = ""
        self._trouble = ""
        self._guard = threading.Lock()

    def check(self) -> None:
        """Raise StoreError if the lease is lost: another process has it, or may have as it was not renewed."""
        if self._taken_by:
            raise StoreError(f"the lease {self._where} was lost to {self._taken_by}; stop here and start again")
        if self._clock() >= self._lease.expires_at:
            why = f" ({self._trouble})" if self._trouble else ""
            raise StoreError(
                f"the lease {self._where} was not renewed in time{why}, and another process may have taken it; "
                "stop here and start again"
            )

    def take(self) -> None:
        """Take the lease. Raises InUse while another process holds it."""
        for _ in range(_ROUNDS):
            lease = self._extended()
            raw, there = _read(self._store, self._key)
            if there and there.expires_at > self._clock():
                raise InUse(self._where, there)
            with contextlib.suppress(Conflict):  # another process was faster: see which
                if raw is None:
                    self._store.create(self._key, lease.to_json())
                else:
                    self._store.swap(self._key, lease.to_json(), expected=raw)
                self._lease = lease
                return
        raise Conflict(f"{self._where} changed hands {_ROUNDS} times while this process wanted it; try again")

    def renew(self) -> None:
        """Extend the lease. An error is kept for `check`, since the next renewal may be in time."""
        with self._guard:
            try:
                self._replace(self._extended())
            except (StageError, OSError) as error:
                self._trouble = str(error)

    def release(self) -> None:
        """Free the lease at once. If that fails, it is free when it expires."""
        with self._guard, contextlib.suppress(StageError, OSError):
            self._replace(self._lease.model_copy(update={"expires_at": min(self._lease.expires_at, self._clock())}))

    def _extended(self) -> Lease:
        return self._lease.model_copy(update={"expires_at": self._clock() + self._ttl_seconds})

    def _replace(self, lease: Lease) -> None:
        """Swap the record for a later one, unless it is no longer this holder's."""
        if self._taken_by:
            return
        try:
            self._store.swap(self._key, lease.to_json(), expected=self._lease.to_json())
        except Conflict:
            raw, there = _read(self._store, self._key)
            if there is None or there.owner != self._lease.owner:
                self._taken_by = (
                    f"process {there.pid} on {there.host}" if there else "another process, which removed it"
                )
                return
            self._store.swap(self._key, lease.to_json(), expected=raw)  # a renewal arrived whose reply did not
        self._lease, self._trouble = lease, ""


@contextlib.contextmanager
def hold(
    store: Store, key: str, ttl_seconds: float = TTL_SECONDS, clock: Callable[[], float] = time.time
) -> Iterator[Held]:
    """Hold the lease `key` inside the block; a thread renews it.

    Raises:
        InUse: another process holds it.
        StoreError: the object at `key` is not a valid lease.
    """
    held = Held(store, key, ttl_seconds, clock)
    held.take()
    left = threading.Event()

    def keep() -> None:
        while not left.wait(ttl_seconds / _RENEWALS):
            held.renew()

    keeper = threading.Thread(target=keep, name=f"lease {key}", daemon=True)
    keeper.start()
    try:
        yield held
    finally:
        left.set()
        keeper.join(ttl_seconds / _RENEWALS)
        if not keeper.is_alive():  # else the store hangs, and the lease will expire
            held.release()


@contextlib.contextmanager
def wait_for(
    store: Store,
    key: str,
    ttl_seconds: float = TTL_SECONDS,
    *,
    until: Callable[[], bool] | None = None,
    say: Callable[[str], None],
    poll_seconds: float = 5.0,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Held | None]:
    """Wait for the lease `key` and hold it inside the block; None once `until` is true, since the result is there.

    Args:
        say: called with the holder that is waited for, once for each holder.

    Raises:
        StoreError: the object at `key` is not a valid lease.
    """
    waited_for = ""
    while until is None or not until():
        with contextlib.ExitStack() as stack:
            try:
                held = stack.enter_context(hold(store, key, ttl_seconds, clock))
            except InUse as error:
                if error.lease.owner != waited_for:
                    say(f"{error}; waiting")
                    waited_for = error.lease.owner
            except Conflict:
                pass  # it changes hands
            else:
                if until is None or not until():  # else the last holder finished just before the lease was taken
                    yield held
                    return
                break
        sleep(poll_seconds)
    yield None


def _read(store: Store, key: str) -> tuple[bytes | None, Lease | None]:
    return find_with_bytes(store, key, Lease, "delete it once no process works on this")

"""A lease: a named exclusive right on any store, valid while its holder renews it; stores that check it at each write.

Unlike a kernel lock it works across machines, so after its holder's death it is free only when it expires. Two
machines' clocks are never compared. A lease has expired by the clock since boot of its holder's machine, or by the
store's clock, or if this process has seen it unchanged for its time to live. A lease prevents double work;
objects that must never be overwritten are written conditionally.

A process can be suspended between the check and the write. So it reads the version of the object first, then checks,
and replaces or deletes only that version. The fence of a lineage names the attempts whose workers may write: once
another holder of the lock has set it, it refuses the next write of the former ones, on any machine.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from infra.store.base import Conflict, Holder, InUse, Lock, Store
from infra.store.records import find_record, find_with_bytes
from tasks.foundation.clock import boot, repeat, seconds, sleep, uptime
from tasks.foundation.errors import StageError, StoreError, SupersededError
from tasks.foundation.records import Record

TTL_SECONDS = 60.0
_RENEWALS = 3  # per time to live, so that two may fail
_YEAR_10000 = 253_402_300_800.0  # beyond Python's calendar
_ROUNDS = 5  # compare-and-swap attempts
_COARSE_SECONDS = 1.0  # the precision of a store's clock


class Lease(Record):
    """The holder, and when the lease ends unless renewed."""

    owner: str
    host: str
    pid: int
    expires_at: float = Field(ge=0, lt=_YEAR_10000, description="in seconds since 1970, for people")
    # Filled in when it is written.
    boot: str = Field(default="", description="boot id of the holder's machine; `until` is in its `uptime`")
    until: float = Field(default=0.0, description="end or release of the lease, in seconds of that clock")
    ttl_seconds: float = Field(default=TTL_SECONDS, description="time to live from the last write, in seconds")
    released: bool = Field(default=False, description="true: its holder released it")
    term: int = Field(default=0, description="number of the holder, +1 with each")

    @property
    def holder(self) -> str:
        """The holder, in words."""
        until = dt.datetime.fromtimestamp(self.expires_at, dt.UTC)
        return f"process {self.pid} on {self.host}, whose lease runs until {until:%Y-%m-%d %H:%M:%S} UTC unless renewed"


class LeaseInUse(InUse):
    """Another process holds the lease."""

    def __init__(self, where: str, lease: Lease) -> None:
        super().__init__(where, lease.holder)
        self.lease = lease


class LostLease(StoreError):
    """Another process has taken the lease."""


class HeldLease:
    """A lease that this process holds; `hold` and `wait_for` make them."""

    def __init__(self, store: Store, key: str, ttl_seconds: float, clock: Callable[[], float]) -> None:
        self._store, self._key, self._ttl_seconds, self._clock = store, key, ttl_seconds, clock
        self._where = f"{store.uri}/{key}"
        self._lease = Lease(
            owner=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            expires_at=0.0,
            boot=boot(),
            ttl_seconds=ttl_seconds,
        )
        self._taken_by = ""
        self._trouble = ""
        self._guard = threading.Lock()

    @property
    def term(self) -> int:
        return self._lease.term

    @property
    def trouble(self) -> str:
        """The error of the last renewal; empty if it succeeded."""
        return self._trouble

    def check(self) -> None:
        """Raise LostLease if another process has taken the lease, StoreError if it expired without renewal."""
        self.check_taken()
        if self._clock() >= self._lease.until:
            why = f" ({self._trouble})" if self._trouble else ""
            raise StoreError(
                f"the lease {self._where} was not renewed in time{why}, and another process may have taken it; "
                "stop here and start again"
            )

    def check_taken(self) -> None:
        """Raise LostLease if another process is known to have taken the lease."""
        if self._taken_by:
            raise LostLease(f"the lease {self._where} was lost to {self._taken_by}; stop here and start again")

    def confirm(self) -> None:
        """Renew the lease in the store. Raises as `check` does; after an error this process must not write."""
        self.renew()
        self.check()

    def take(self) -> None:
        """Take the lease. Raises InUse while another process holds it."""
        for _ in range(_ROUNDS):
            lease = self._extended().model_copy(update={"term": 1})
            raw, there = _read(self._store, self._key)
            if raw is not None and there:
                if _is_held(self._store, self._key, raw, there, self._clock):
                    raise LeaseInUse(self._where, there)
                lease = lease.model_copy(update={"term": there.term + 1})
            with contextlib.suppress(Conflict):  # another process was faster: read the lease again
                if raw is None:
                    self._store.create(self._key, lease.to_json())
                else:
                    self._store.swap(self._key, lease.to_json(), expected=raw)
                self._lease = lease
                return
        raise Conflict(f"{self._where} changed hands {_ROUNDS} times while this process wanted it; try again")

    def renew(self) -> None:
        """Extend the lease. An error is kept for `check`, since the next renewal may still be in time."""
        with self._guard:
            try:
                self._replace(self._extended())
            except (StageError, OSError) as error:
                self._trouble = str(error)

    def release(self) -> None:
        """Free the lease at once. If that fails, it expires."""
        with self._guard, contextlib.suppress(StageError, OSError):
            until = min(self._lease.until, self._clock())
            self._replace(self._lease.model_copy(update={"expires_at": seconds(), "until": until, "released": True}))

    def _extended(self) -> Lease:
        until = self._clock() + self._ttl_seconds
        return self._lease.model_copy(update={"expires_at": seconds() + self._ttl_seconds, "until": until})

    def _replace(self, lease: Lease) -> None:
        """Swap the record for a later one, unless another holder has it."""
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
            # The earlier renewal succeeded, but its reply was lost.
            self._store.swap(self._key, lease.to_json(), expected=raw)
        self._lease, self._trouble = lease, ""


@contextlib.contextmanager
def hold(
    store: Store, key: str, ttl_seconds: float = TTL_SECONDS, clock: Callable[[], float] = uptime
) -> Iterator[HeldLease]:
    """Hold the lease `key` inside the block; it is renewed meanwhile.

    Raises:
        InUse: another process holds it.
        StoreError: the object at `key` is not a valid lease.
    """
    held = HeldLease(store, key, ttl_seconds, clock)
    held.take()
    keeper = repeat(held.renew, ttl_seconds / _RENEWALS, f"lease {key}")
    try:
        yield held
    finally:
        if keeper.stop(ttl_seconds / _RENEWALS):  # else the store hangs, and the lease expires
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
    clock: Callable[[], float] = uptime,
    sleep: Callable[[float], None] = sleep,
) -> Iterator[HeldLease | None]:
    """Wait for the lease `key` and hold it inside the block. Yield None once `until` is true: the result exists.

    Args:
        say: called once for each holder while waiting, with a sentence that names it.

    Raises:
        StoreError: the object at `key` is not a valid lease.
    """
    waited_for = ""
    while until is None or not until():
        with contextlib.ExitStack() as stack:
            try:
                held = stack.enter_context(hold(store, key, ttl_seconds, clock))
            except LeaseInUse as error:
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


def look(store: Store, key: str, clock: Callable[[], float] = uptime) -> Holder | None:
    """Return the holder of the lease `key`; None if it is free or expired. Changes nothing.

    Raises:
        StoreError: the object at `key` is not a valid lease.
    """
    raw, lease = _read(store, key)
    if raw is None or lease is None or not _is_held(store, key, raw, lease, clock):
        return None
    return Holder(lease.holder, seconds_left(store, key, lease, clock))


def seconds_left(store: Store, key: str, lease: Lease, clock: Callable[[], float] = uptime) -> float | None:
    """Return the seconds until a lease ends, negative after its end; None if no comparable clock exists."""
    if lease.boot and lease.boot == boot():
        return lease.until - clock()
    age = store.age_seconds(key)
    if age is None:
        return None
    return -age if lease.released else lease.ttl_seconds + _COARSE_SECONDS - age


_seen: dict[
    tuple[str, str], tuple[bytes, float]
] = {}  # store and key -> a lease of unknown end, and the time it was first seen


def _is_held(store: Store, key: str, raw: bytes, lease: Lease, clock: Callable[[], float]) -> bool:
    if lease.released:
        return False
    left = seconds_left(store, key, lease, clock)
    if left is None:
        name, now = (store.uri, key), clock()
        seen = _seen.get(name)
        if seen is None or seen[0] != raw:
            seen = _seen[name] = (raw, now)
        left = seen[1] + lease.ttl_seconds - now
        if left <= 0:
            del _seen[name]
    return left > 0


def _read(store: Store, key: str) -> tuple[bytes | None, Lease | None]:
    return find_with_bytes(store, key, Lease, "delete it once no process works on this")


class CheckedStore:
    """A store whose writes are checked; its process may lose the lineage lock."""

    def __init__(self, store: Store, check: Callable[[str], None]) -> None:
        """Call `check` with the key before each write; it raises SupersededError."""
        self._store, self._check = store, check
        self.uri = store.uri

    def read(self, key: str) -> bytes:
        return self._store.read(key)

    def exists(self, key: str) -> bool:
        return self._store.exists(key)

    def list(self, prefix: str) -> list[str]:
        return self._store.list(prefix)

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._store.sizes(prefix)

    def tags(self, prefix: str) -> dict[str, str]:
        return self._store.tags(prefix)

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        return self._store.local(key, names)

    def age_seconds(self, key: str) -> float | None:
        return self._store.age_seconds(key)

    def peek(self, key: str) -> Holder | None:
        return self._store.peek(key)

    def write(self, key: str, data: bytes) -> None:
        while True:
            try:
                before = self._store.read(key)
            except FileNotFoundError:
                before = None
            self._check(key)
            with contextlib.suppress(Conflict):  # another process wrote it since: it may be the successor
                return self._store.swap(key, data, before)

    def create(self, key: str, data: bytes) -> None:
        self._check(key)
        self._store.create(key, data)

    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        self._check(key)
        self._store.swap(key, data, expected)

    def upload(self, source: Path, key: str, instead_of: str | None = None) -> None:
        self._check(key)
        self._store.upload(source, key, instead_of)

    def move(self, prefix: str, target: str) -> None:
        self._check(target)
        self._store.move(prefix, target)

    def copy(self, prefix: str, target: str, names: Collection[str]) -> None:
        self._check(target)
        self._store.copy(prefix, target, names)

    def delete(self, prefix: str) -> None:
        self.discard(prefix, self._store.tags(prefix))

    def discard(self, prefix: str, seen: Mapping[str, str]) -> None:
        self._check(prefix)
        self._store.discard(prefix, seen)

    def lock(self, key: str) -> contextlib.AbstractContextManager[Lock]:
        self._check(key)
        return self._store.lock(key)


@contextlib.contextmanager
def convert_lost_lease(key: str) -> Iterator[None]:
    """Convert LostLease of the lock `key` to SupersededError."""
    try:
        yield
    except LostLease as error:
        raise SupersededError(
            f"{key} belongs to another process now, since this one stood still for too long: {error}. That process "
            "goes on with the work; nothing more is written here"
        ) from error


PATIENCE_SECONDS = 10.0  # a new holder finds its jobs one by one
POLL_SECONDS = 1.0
WAY_OUT = "delete it once no process works on this lineage"


class Fence(Record):
    """`.locks/<name of the lock>.fence`: the folders of the attempts that the holder submitted or found."""

    attempts: tuple[str, ...]
    term: int = Field(description="term of the lock's holder that set the fence")


class FencedStore(CheckedStore):
    """The store of one attempt's workers: each write first checks that no fence excludes the attempt."""

    def __init__(
        self, store: Store, fences: Sequence[str], attempt: str, sleep: Callable[[float], None] = sleep
    ) -> None:
        super().__init__(store, self._look)
        self._fences, self._attempt, self._sleep = fences, attempt, sleep

    def _look(self, key: str) -> None:
        """Raise SupersededError if another process took over and its fence excludes this attempt."""
        for fence in self._fences:
            polls = PATIENCE_SECONDS / POLL_SECONDS
            while (others := self._others(fence)) is not None:
                if polls <= 0:
                    raise SupersededError(
                        f"{self.uri}/{key} was not written: another process took over from {self._attempt}, and works "
                        f"on {', '.join(others)}"
                    )
                polls -= 1
                self._sleep(POLL_SECONDS)

    def _others(self, fence: str) -> Sequence[str] | None:
        """Return the attempts that may write instead of this one; None if this one may."""
        found = find_record(self._store, fence, Fence, WAY_OUT)
        return found.attempts if found is not None and self._attempt not in found.attempts else None

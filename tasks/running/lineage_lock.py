"""The lock of a lineage, also when the process that held it was killed, or only stopped, a moment ago.

A process that was stopped for so long that another one took the lock is refused when it wakes: at the next pulse of its
stage, before its next write, and its workers at theirs (infra/store/fence.py).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from infra.store.base import Conflict, Lock, Store
from infra.store.fence import Fence, fence_key
from infra.store.lease import InUse, LostLease
from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import SupersededError
from tasks.running.context import stage_context, within

TRIES = 3  # a second apart: a process that only checks the lock holds it for a moment


class Turn:
    """A lineage that this process holds."""

    def __init__(self, store: Store, key: str, lock: Lock) -> None:
        self._store, self._key, self._lock = store, key, lock
        self._attempts: tuple[str, ...] = ()
        self._guard = threading.Lock()  # spans of a backfill begin their stages in threads

    @property
    def fence(self) -> str:
        """The key of the record that its workers look at before they write."""
        return fence_key(self._key)

    def check(self) -> None:
        """Raise SupersededError if another process has taken the lineage, as far as is known here."""
        with _superseded(self._key):
            self._lock.check_taken()

    def confirm(self) -> None:
        """Make sure of it in the store. Raises SupersededError; StoreError if it can't be known."""
        with _superseded(self._key):
            self._lock.confirm()

    def admit(self, attempt: str) -> None:
        """Let the workers of one attempt write, and none that an earlier holder started. Raises as `confirm` does."""
        self.confirm()
        with self._guard:
            self._attempts = (*self._attempts, attempt)
            self._store.write(self.fence, Fence(attempts=self._attempts).to_json())


@contextlib.contextmanager
def hold_lineage(
    store: Store, key: str, warn: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold the lock `key` inside the block.

    In a directory the kernel frees the lock of a process that dies. In a bucket it is a lease, which stays for a
    minute after its holder died: wait for that. Do not wait for a holder that renews its lease, nor for one that still
    has the lock of a directory after a few seconds.

    Raises:
        Conflict: another process works on it.
        SupersededError: another process took it meanwhile.
    """
    with _superseded(key), contextlib.ExitStack() as held:
        expiry, refused = None, 0
        while True:
            try:
                lock = held.enter_context(store.lock(key))
                break
            except InUse as error:
                if expiry is None:
                    warn(f"{error}; waiting to see whether it still runs")
                    expiry = error.lease.expires_at
                elif error.lease.expires_at != expiry:
                    raise
            except Conflict:
                refused += 1
                if refused == TRIES:
                    raise
            sleep(1.0)
        with within(turns=(*stage_context().turns, Turn(store, key, lock))):
            yield


def check_turns() -> None:
    """Raise SupersededError if a lineage that is held here was taken by another process."""
    for turn in stage_context().turns:
        turn.check()


def confirm_turns() -> None:
    """Make sure in the store that every lineage that is held here still is. Raises SupersededError, StoreError."""
    for turn in stage_context().turns:
        turn.confirm()


def admit(spec: JobSpec) -> None:
    """Let the workers of this attempt write in the lineages that are held here. Raises as `confirm_turns` does."""
    for turn in stage_context().turns:
        turn.admit(spec.job_prefix)


@contextlib.contextmanager
def _superseded(key: str) -> Iterator[None]:
    try:
        yield
    except LostLease as error:
        raise SupersededError(
            f"{key} belongs to another process now, since this one stood still for too long: {error}. That process "
            "goes on with the work; nothing more is written here"
        ) from error

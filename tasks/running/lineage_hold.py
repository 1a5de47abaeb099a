"""This process's hold on a lineage, with checks that no other process has taken it."""

import contextlib
import threading

from infra.store.base import Conflict, Lock, Store
from infra.store.lease import WAY_OUT, Fence, convert_lost_lease
from infra.store.records import find_record, find_with_bytes
from tasks.contracts.workspace import FENCE
from tasks.foundation.errors import StoreError, SupersededError

_ROUNDS = 5  # compare-and-swap attempts on the fence


class LineageHold:
    """A lineage that this process holds."""

    def __init__(self, store: Store, key: str, lock: Lock) -> None:
        self._store, self._key, self._lock = store, key, lock
        there = find_record(store, self.fence, Fence, WAY_OUT)
        # Later than every earlier holder, even if the lock's own count was lost.
        self._term = max(lock.term, there.term + 1) if there else lock.term
        self._attempts: tuple[str, ...] = ()
        self._guard = threading.Lock()  # spans of a backfill begin their stages in threads

    @property
    def fence(self) -> str:
        """The key of the fence, which the workers check before each write."""
        return FENCE.key(lock=self._key)

    def check(self) -> None:
        """Raise SupersededError if another process is known to have taken the lineage. Sends no request."""
        with convert_lost_lease(self._key):
            self._lock.check_taken()

    def confirm(self) -> None:
        """Check in the store that this process still holds the lineage. Raises SupersededError; StoreError: unknown."""
        with convert_lost_lease(self._key):
            self._lock.confirm()

    def admit(self, attempt: str) -> None:
        """Let the workers of one attempt write, and no workers of an earlier holder. Raises as `confirm` does.

        Read the fence, confirm the lock, then swap the fence: a process that is suspended in between, or whose request
        arrives late, can't replace a later holder's fence.
        """
        with self._guard:
            self._attempts = (*self._attempts, attempt)
            fence = Fence(attempts=self._attempts, term=self._term).to_json()
            for _ in range(_ROUNDS):
                raw, there = find_with_bytes(self._store, self.fence, Fence, WAY_OUT)
                self.confirm()
                if there is not None and there.term > self._term:
                    raise SupersededError(
                        f"{self._key} belongs to another process now, which works on {', '.join(there.attempts)}; "
                        "nothing more is written here"
                    )
                with contextlib.suppress(Conflict):  # replaced meanwhile: read it again
                    self._store.swap(self.fence, fence, expected=raw)
                    return
        raise StoreError(f"{self._store.uri}/{self.fence} was replaced {_ROUNDS} times meanwhile; start this again")

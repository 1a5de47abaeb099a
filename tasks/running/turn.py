"""A lineage that this process holds, and what becomes of that if another process takes it."""

import contextlib
import threading
from collections.abc import Iterator

from infra.store.base import Lock, Store
from infra.store.fence import Fence, fence_key
from infra.store.lease import LostLease
from tasks.foundation.errors import SupersededError


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
        with superseded(self._key):
            self._lock.check_taken()

    def confirm(self) -> None:
        """Make sure of it in the store. Raises SupersededError; StoreError if it can't be known."""
        with superseded(self._key):
            self._lock.confirm()

    def admit(self, attempt: str) -> None:
        """Let the workers of one attempt write, and none that an earlier holder started. Raises as `confirm` does."""
        self.confirm()
        with self._guard:
            self._attempts = (*self._attempts, attempt)
            self._store.write(self.fence, Fence(attempts=self._attempts).to_json())


@contextlib.contextmanager
def superseded(key: str) -> Iterator[None]:
    """Raise SupersededError where the lease of the lock `key` was lost."""
    try:
        yield
    except LostLease as error:
        raise SupersededError(
            f"{key} belongs to another process now, since this one stood still for too long: {error}. That process "
            "goes on with the work; nothing more is written here"
        ) from error

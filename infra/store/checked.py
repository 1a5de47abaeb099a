"""A store that checks before each write that this process may still write.

A process can be suspended between the check and the write. So it reads the object's version first, then checks, and
replaces or deletes only that version: never an object that its successor wrote.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from infra.store.base import Conflict, Holder, Lock, Store
from infra.store.lease import LostLease
from tasks.foundation.errors import SupersededError


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

    def local(self, key: str) -> Path:
        return self._store.local(key)

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

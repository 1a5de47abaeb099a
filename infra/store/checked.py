"""A store that checks before each write that this process may still write, and the fence of a lineage.

A process can be suspended between the check and the write. So it reads the version of the object first, then checks,
and replaces or deletes only that version. The fence names the attempts whose workers may write: once another holder of
the lock has set it, it refuses the next write of the former ones, on any machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from infra.store.base import Conflict, Holder, Lock, Store
from infra.store.lease import LostLease
from infra.store.records import find_record
from tasks.foundation.clock import sleep
from tasks.foundation.errors import SupersededError
from tasks.foundation.records import Record


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

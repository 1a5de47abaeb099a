"""The fence of a lineage: the workers of which attempts may write to the workspace.

The holder of the lineage's lock sets it before workers start. Those of an earlier holder, which stood still until
another one took over, are refused at their next write, on whichever machine they wake.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.store.base import Holder, Lock, Store
from infra.store.records import find_record
from tasks.foundation.errors import SupersededError
from tasks.foundation.records import Record

PATIENCE_SECONDS = 10.0  # a holder that has just taken over finds its jobs one by one
POLL_SECONDS = 1.0


class Fence(Record):
    """`.locks/<name of the lock>.fence`: the folders of the attempts that were submitted, or found, by the holder."""

    attempts: tuple[str, ...]


def fence_key(lock: str) -> str:
    """Return where the fence of the lock `lock` is."""
    return f".locks/{lock}.fence"


class FencedStore:
    """A store as the workers of one attempt see it: each write looks first whether a fence keeps them out."""

    def __init__(
        self, store: Store, fences: Sequence[str], attempt: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store, self._fences, self._attempt, self._sleep = store, fences, attempt, sleep
        self.uri = store.uri

    def read(self, key: str) -> bytes:
        return self._store.read(key)

    def exists(self, key: str) -> bool:
        return self._store.exists(key)

    def list(self, prefix: str) -> list[str]:
        return self._store.list(prefix)

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._store.sizes(prefix)

    def local(self, key: str) -> Path:
        return self._store.local(key)

    def age_seconds(self, key: str) -> float | None:
        return self._store.age_seconds(key)

    def peek(self, key: str) -> Holder | None:
        return self._store.peek(key)

    def write(self, key: str, data: bytes) -> None:
        self._check(key)
        self._store.write(key, data)

    def create(self, key: str, data: bytes) -> None:
        self._check(key)
        self._store.create(key, data)

    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        self._check(key)
        self._store.swap(key, data, expected)

    def upload(self, source: Path, key: str) -> None:
        self._check(key)
        self._store.upload(source, key)

    def move(self, prefix: str, target: str) -> None:
        self._check(target)
        self._store.move(prefix, target)

    def delete(self, prefix: str) -> None:
        self._check(prefix)
        self._store.delete(prefix)

    def lock(self, key: str) -> contextlib.AbstractContextManager[Lock]:
        self._check(key)
        return self._store.lock(key)

    def _check(self, key: str) -> None:
        """Raise SupersededError if another process took over, and does not want the work of this attempt."""
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
        """Return the attempts that may write if this one may not."""
        found = find_record(self._store, fence, Fence, "delete it once no process works on this lineage")
        return found.attempts if found is not None and self._attempt not in found.attempts else None

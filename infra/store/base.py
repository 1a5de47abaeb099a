"""The workspace as a store of objects under slash-separated keys, and a limited wait for one of its locks.

The store only knows bytes, conditional writes and folders of files. `infra/store/manifest.py` decides when a folder
is complete.
"""

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from tasks.foundation.clock import sleep, uptime
from tasks.foundation.errors import DiskError, StoreError


class Conflict(StoreError):
    """A conditional write failed: the object has changed since the caller read it."""


class NoAnswer(StoreError):
    """The store failed at a request, at the last of all tries: no damage of the object follows from it."""


class ReadOnlyError(DiskError):
    """Nothing may be written to the workspace: its disk is mounted for reading only, or this user lacks the right."""


class InUse(Conflict):
    """Another process holds a lock."""

    def __init__(self, where: str, holder: str) -> None:
        super().__init__(f"{where} is in use by {holder}; wait for it or stop it")
        self.holder = holder


class Holder(NamedTuple):
    """The holder of a lock, in words, and the least time until it expires; None if it does not expire."""

    name: str
    seconds_left: float | None


class Store(Protocol):
    """The interface of every workspace store. Keys look like `runs/4f2a/train/result.json`."""

    uri: str

    def read(self, key: str) -> bytes: ...
    def exists(self, key: str) -> bool: ...
    def list(self, prefix: str) -> list[str]: ...
    def sizes(self, prefix: str) -> dict[str, int]: ...
    def tags(self, prefix: str) -> dict[str, str]: ...
    def write(self, key: str, data: bytes) -> None: ...
    def create(self, key: str, data: bytes) -> None: ...
    def swap(self, key: str, data: bytes, expected: bytes | None) -> None: ...
    def upload(self, source: Path, key: str, instead_of: str | None = None) -> None: ...
    def local(self, key: str, names: Collection[str] | None = None) -> Path: ...
    def move(self, prefix: str, target: str) -> None: ...
    def copy(self, prefix: str, target: str, names: Collection[str]) -> None: ...
    def delete(self, prefix: str) -> None: ...
    def discard(self, prefix: str, seen: Mapping[str, str]) -> None: ...
    def age_seconds(self, key: str) -> float | None: ...
    def peek(self, key: str) -> Holder | None: ...
    def lock(self, key: str) -> contextlib.AbstractContextManager["Lock"]: ...


class Lock(Protocol):
    """A held lock. `term` counts its holders."""

    @property
    def term(self) -> int: ...

    def check_taken(self) -> None:
        """Raise LostLease if another process is known to have taken it. Cheap: sends no request."""
        ...

    def confirm(self) -> None:
        """Check in the store that it is still held. Raises LostLease if not, StoreError if that is unknown."""
        ...


def manifests_apart(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names of manifests, by which readers know that a folder is whole, and the others.

    Manifests of this project's folders, and of LanceDB's tables.
    """
    apart: tuple[list[str], list[str]] = ([], [])
    for name in names:
        apart[not name.endswith((".manifest", "/MANIFEST.json")) and name != "MANIFEST.json"].append(name)
    return apart


def sha256_of(path: Path) -> str:
    """Return the hex SHA-256 of a file, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


PATIENCE_SECONDS = 600.0
POLL_SECONDS = 1.0


@contextlib.contextmanager
def wait_for_lock(
    store: Store,
    key: str,
    say: Callable[[str], None],
    patience_seconds: float | None = None,
    sleep: Callable[[float], None] = sleep,
) -> Iterator[Lock]:
    """Wait for the lock `key` and hold it inside the block.

    Args:
        say: called once with a sentence about the holder and the longest wait.
        patience_seconds: longest wait; None: PATIENCE_SECONDS.

    Raises:
        Conflict: another process still holds it after that; InUse, a Conflict, names the holder.
    """
    patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    until, said = uptime() + patience, False
    with contextlib.ExitStack() as held:
        while True:
            try:
                lock = held.enter_context(store.lock(key))
                break
            except Conflict as error:  # or it just changed hands
                left = until - uptime()
                if left <= 0:
                    raise
                if not said and isinstance(error, InUse):
                    say(f"{store.uri}/{key} is in use by {error.holder}; waiting for it, at most {_words(patience)}")
                    said = True
            sleep(min(POLL_SECONDS, left))
        yield lock


def _words(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"

"""The workspace as a store of objects under slash-separated keys.

The store only knows bytes, conditional writes and folders of files. What the objects mean, and when a folder
counts as complete, is `infra/store/manifest.py`.
"""

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from tasks.foundation.errors import FailureClass, StoreError


class Conflict(StoreError):
    """A conditional write failed: the object was not what the caller had read."""


class ReadOnlyError(StoreError):
    """Nothing may be written to the workspace: a mount or rights to set right."""

    failure = FailureClass.CONFIG


class InUse(Conflict):
    """Another process holds a lock."""

    def __init__(self, where: str, holder: str) -> None:
        super().__init__(f"{where} is in use by {holder}; wait for it or stop it")
        self.holder = holder


class Holder(NamedTuple):
    """Who holds a lock, in words, and for how long at least; None where that has no end of its own."""

    name: str
    seconds_left: float | None


class Store(Protocol):
    """What every store of a workspace can do. Keys look like `runs/4f2a/train/result.json`."""

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
    def local(self, key: str) -> Path: ...
    def move(self, prefix: str, target: str) -> None: ...
    def delete(self, prefix: str) -> None: ...
    def discard(self, prefix: str, seen: Mapping[str, str]) -> None: ...
    def age_seconds(self, key: str) -> float | None: ...
    def peek(self, key: str) -> Holder | None: ...
    def lock(self, key: str) -> contextlib.AbstractContextManager["Lock"]: ...


class Lock(Protocol):
    """A lock that is held. `term` counts its holders."""

    @property
    def term(self) -> int: ...

    def check_taken(self) -> None:
        """Raise LostLease if another process is known to have taken it. Asks nobody, so it is cheap."""
        ...

    def confirm(self) -> None:
        """Make sure that it is still held. Raises LostLease if it is not, StoreError if that can't be known."""
        ...


def sha256_of(path: Path) -> str:
    """Return the hex SHA-256 of a file, which is read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()

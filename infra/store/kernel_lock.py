"""A kernel lock on a file: freed when its holder dies, and not before, so it is never stale.

The file names the last holder; only the kernel knows if the lock is held. Locks across machines: infra/store/lease.py.
"""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from infra.store.base import Holder, InUse
from tasks.foundation.records import Record

_TRIES = 10  # `look` takes the kernel's shared lock for an instant
_PAUSE_SECONDS = 0.01
_RECORD_BYTES = 4096


class LockRecord(Record):
    """The first line of the file: its last holder. `term` counts the holders."""

    term: int
    host: str
    pid: int


class KernelLock:
    """A held lock. Nobody can take it from a living process."""

    def __init__(self, term: int) -> None:
        self.term = term

    def check_taken(self) -> None: ...
    def confirm(self) -> None: ...


@contextlib.contextmanager
def hold(path: Path, where: str) -> Iterator[KernelLock]:
    """Hold the lock of the file `path` inside the block. Raises InUse, about `where`, if another process holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _taken(handle):
            raise InUse(where, _said(_read(handle)))
        before = _read(handle)
        mine = LockRecord(term=before.term + 1 if before else 1, host=socket.gethostname(), pid=os.getpid())
        with contextlib.suppress(OSError):  # a full disk: `prune` frees space and needs locks too
            written = os.pwrite(handle, mine.to_json().replace(b"\n", b" ") + b"\n", 0)
            os.ftruncate(handle, written)
        yield KernelLock(mine.term)
    finally:
        os.close(handle)


@contextlib.contextmanager
def wait_and_hold(path: Path) -> Iterator[None]:
    """Wait for the lock of the file `path` and hold it inside the block; each holder keeps it for an instant only."""
    with path.open("a", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def look(path: Path) -> Holder | None:
    """Return the holder of the lock; None if it is free. Needs no write permission."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so looks don't block each other; `hold` retries
    except BlockingIOError:
        record = _read(handle)
        return Holder(_said(record), None)
    finally:
        os.close(handle)
    return None


def _taken(handle: int) -> bool:
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_SECONDS if left else 0.0)
        else:
            return True
    return False


def _read(handle: int) -> LockRecord | None:
    """Return the last holder; None if the file has no valid record."""
    try:
        return LockRecord.model_validate_json(os.pread(handle, _RECORD_BYTES, 0).partition(b"\n")[0])
    except ValidationError:
        return None


def _said(record: LockRecord | None) -> str:
    return f"process {record.pid} on {record.host}" if record else "another process"

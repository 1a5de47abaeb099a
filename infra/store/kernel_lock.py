"""A lock of the kernel by a file: freed when its holder dies, and not before, so it is never stale.

The file says who holds it. Whether anybody does, only the kernel knows. Locks across machines are infra/store/lease.py.
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

_TRIES = 10  # a look takes the kernel's shared lock for an instant
_PAUSE_SECONDS = 0.01
_RECORD_BYTES = 4096


class LockRecord(Record):
    """The first line of the file: its last holder. `term` counts the holders."""

    term: int
    host: str
    pid: int


class KernelLock:
    """A lock that is held. Nobody can take it from a process that lives."""

    def __init__(self, term: int) -> None:
        self.term = term

    def check_taken(self) -> None: ...
    def confirm(self) -> None: ...


@contextlib.contextmanager
def hold(path: Path, where: str) -> Iterator[KernelLock]:
    """Hold the lock of the file `path` inside the block. Raises InUse, about `where`, while another process does."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _taken(handle):
            raise InUse(where, _said(_read(handle)))
        before = _read(handle)
        mine = LockRecord(term=before.term + 1 if before else 1, host=socket.gethostname(), pid=os.getpid())
        with contextlib.suppress(OSError):  # a full disk: `prune`, which frees some, needs locks too
            written = os.pwrite(handle, mine.to_json().replace(b"\n", b" ") + b"\n", 0)
            os.ftruncate(handle, written)
        yield KernelLock(mine.term)
    finally:
        os.close(handle)


@contextlib.contextmanager
def wait_and_hold(path: Path) -> Iterator[None]:
    """Wait for the lock of the file `path`, which each holder has for an instant, and hold it inside the block."""
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def look(path: Path) -> Holder | None:
    """Return who holds the lock; None where nobody does. Needs no right to write."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # looks don't meet each other, and `hold` tries again
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
    """Return the last holder; None where the file does not say."""
    try:
        return LockRecord.model_validate_json(os.pread(handle, _RECORD_BYTES, 0).partition(b"\n")[0])
    except ValidationError:
        return None


def _said(record: LockRecord | None) -> str:
    return f"process {record.pid} on {record.host}" if record else "another process"

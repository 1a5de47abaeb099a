"""Temporary files that killed processes left in a workspace: found by their locks, and deleted.

A process that writes holds the kernel's lock of its temporary file, which is free once the process is dead.
"""

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from infra.store.base import Store

PREFIX = ".tmp-"


@contextlib.contextmanager
def unfinished_in(folder: Path) -> Iterator[Path]:
    """Give an empty temporary file in `folder` inside the block, which may rename it; delete it if it did not."""
    staged, handle = _locked(folder)
    try:
        yield staged
    finally:
        os.close(handle)
        staged.unlink(missing_ok=True)


def clear_unfinished(store: Store) -> None:
    """Delete what killed processes left in a workspace in a directory; a bucket has no unfinished objects."""
    if "://" in store.uri:
        return
    for folder, _, names in os.walk(store.uri):
        for name in names:
            if name.startswith(PREFIX):
                _delete_abandoned(Path(folder) / name)


def _locked(folder: Path) -> tuple[Path, int]:
    while True:
        staged = folder / f"{PREFIX}{uuid.uuid4().hex}"  # not mkstemp, whose files only their owner can read
        handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if staged.exists():  # else it was taken for abandoned before it was locked
            return staged, handle
        os.close(handle)


def _delete_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):  # its writer lives, or it was renamed in this moment
        handle = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(handle)

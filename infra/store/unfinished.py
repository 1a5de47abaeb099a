"""Delete the temporary files of killed processes in a workspace.

A writing process holds the kernel's lock of its temporary file; a free lock means that the process is dead.
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
def temporary_file(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary file in `folder`, which the block may rename; delete it afterwards if it did not."""
    staged, handle = _locked(folder)
    try:
        yield staged
    finally:
        os.close(handle)
        staged.unlink(missing_ok=True)


def clear_unfinished(store: Store) -> None:
    """Delete the temporary files of killed processes in a local workspace; a bucket has no unfinished objects."""
    if "://" in store.uri:
        return
    for folder, _, names in os.walk(store.uri):
        for name in names:
            if name.startswith(PREFIX):
                _delete_abandoned(Path(folder) / name)


def _locked(folder: Path) -> tuple[Path, int]:
    while True:
        staged = folder / f"{PREFIX}{uuid.uuid4().hex}"  # not mkstemp: only the owner could read its files
        handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            os.close(handle)
            staged.unlink(missing_ok=True)
            raise
        if staged.exists():  # else another process took it for abandoned before it was locked
            return staged, handle
        os.close(handle)


def _delete_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):  # its writer lives, or it was just renamed
        handle = os.open(path, os.O_RDWR)  # NFS gives an exclusive lock only to who may write
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(handle)

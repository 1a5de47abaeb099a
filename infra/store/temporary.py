"""Temporary folders on this machine and temporary files in a workspace, deleted after a killed process.

A process holds the kernel's lock of its folder or file. The kernel frees it when the process dies, so the next process
recognises what is abandoned.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from infra.store.base import Store
from tasks.foundation.errors import cause_of

ATTEMPT = "millrace-attempt-"  # prefix of folder names, for one attempt's workers
INGEST = "millrace-ingest-"
DOWNLOADS = "millrace-s3-"


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Yield an empty folder in TMPDIR whose name begins with `prefix`; delete it afterwards.

    Also delete abandoned folders with this prefix. Raises OSError: TMPDIR can't be written. Raises HostError for an
    error in the block after somebody deleted the folder.
    """
    folder, handle = claim_folder(prefix)
    try:
        yield folder
    except Exception as error:
        if (cause := cause_of(error, folder)) is error:
            raise
        raise cause from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def claim_folder(prefix: str) -> tuple[Path, int]:
    """Return a new folder in TMPDIR and the handle of its lock; delete abandoned folders with this prefix.

    The folder counts as abandoned once this process, and its forks, have ended or closed the handle.
    """
    _delete_abandoned_folders(prefix)
    return _locked_folder(prefix)


def _locked_folder(prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with contextlib.suppress(FileNotFoundError):  # another process took it for abandoned before it was locked
            handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists():
                return folder, handle
            os.close(handle)


def _delete_abandoned_folders(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # it is locked, another user's, or just deleted
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


PREFIX = ".tmp-"


@contextlib.contextmanager
def temporary_file(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary file in `folder`, which the block may rename; delete it afterwards if it did not."""
    staged, handle = _locked_file(folder)
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
                _delete_abandoned_file(Path(folder) / name)


def _locked_file(folder: Path) -> tuple[Path, int]:
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


def _delete_abandoned_file(path: Path) -> None:
    with contextlib.suppress(OSError):  # its writer lives, or it was just renamed
        handle = os.open(path, os.O_RDWR)  # NFS gives an exclusive lock only to who may write
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(handle)

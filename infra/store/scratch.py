"""Folders for temporary files on this machine; the folder of a killed process is deleted by the next one.

A process holds the kernel's lock of its folder. The kernel frees it when the process dies, so the next process
recognises abandoned folders.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tasks.foundation.disks import cause_of

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
    _delete_abandoned(prefix)
    return _locked(prefix)


def _locked(prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with contextlib.suppress(FileNotFoundError):  # another process took it for abandoned before it was locked
            handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists():
                return folder, handle
            os.close(handle)


def _delete_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # it is locked, another user's, or just deleted
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)

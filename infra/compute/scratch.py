"""The folder for the temporary files of workers on this machine; none outlives its attempt, nor a killed process.

A process holds the kernel's lock of its folder. The kernel frees that when the process dies, so the next one knows
which folders nobody will delete any more.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "millrace-attempt-"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder in TMPDIR inside the block, for one attempt's workers; delete it afterwards.

    Also delete those that killed processes left. Raises OSError: TMPDIR can't be written.
    """
    _delete_abandoned()
    folder, handle = _locked()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _locked() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with contextlib.suppress(FileNotFoundError):  # taken for abandoned before it was locked
            handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists():
                return folder, handle
            os.close(handle)


def _delete_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is held, or another user's, or deleted in this moment
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)

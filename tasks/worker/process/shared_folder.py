"""A local folder that several workers of a machine share; the last one to leave removes it."""

import fcntl
import os
import shutil
import uuid
import weakref
from pathlib import Path

_ARRIVED = "arrived-"


class SharedFolder:
    """One worker's use of the folder, which the first worker creates."""

    def __init__(self, path: Path, workers: int = 1) -> None:
        """Create the folder if needed, and lock it against removal.

        Args:
            workers: the folder is kept until this number of workers has used it, so that late ones find its files.
        """
        self.path = path
        lock = _use(path)
        while not _is_at(lock, path):  # another worker has just removed it
            os.close(lock)
            lock = _use(path)
        if workers > 1:
            (path / f"{_ARRIVED}{uuid.uuid4().hex}").touch()
        self._leave = weakref.finalize(self, _leave, lock, path, workers)

    def leave(self) -> None:
        """Remove the folder unless another worker needs it; a second call does nothing."""
        self._leave()


def _leave(lock: int, path: Path, workers: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if workers == 1 or len([*path.glob(f"{_ARRIVED}*")]) >= workers:
            shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def _use(path: Path) -> int:
    while True:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            folder = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        fcntl.flock(folder, fcntl.LOCK_SH)  # the kernel releases it if the process dies
        return folder


def _is_at(folder: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(folder), path.stat())
    except FileNotFoundError:
        return False

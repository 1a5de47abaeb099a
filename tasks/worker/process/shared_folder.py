"""A local folder that several workers of a machine use, until the last of them leaves it."""

import fcntl
import os
import shutil
import uuid
import weakref
from pathlib import Path

_ARRIVED = "arrived-"


class SharedFolder:
    """A worker's use of a folder, which is there from the first worker's use on; the last one to leave removes it."""

    def __init__(self, path: Path, workers: int = 1) -> None:
        """Begin to use it.

        Args:
            workers: nobody removes the folder before so many have used it: what one that has left wrote is there for
                those that come late.
        """
        self.path = path
        lock = _use(path)
        while not _is_at(lock, path):  # the last worker before this one has just removed it
            os.close(lock)
            lock = _use(path)
        if workers > 1:
            (path / f"{_ARRIVED}{uuid.uuid4().hex}").touch()
        self._leave = weakref.finalize(self, _leave, lock, path, workers)

    def leave(self) -> None:
        """Remove the folder, unless another worker uses it; nothing happens the second time."""
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
        fcntl.flock(folder, fcntl.LOCK_SH)  # let go by the kernel if the process dies
        return folder


def _is_at(folder: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(folder), path.stat())
    except FileNotFoundError:
        return False

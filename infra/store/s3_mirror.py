"""Local copies of a bucket's objects, in a temporary folder of this process that is deleted at its end.

Only objects that changed in the bucket, or whose copies were touched, are downloaded again. The caller downloads.
"""

import atexit
import datetime as dt
import functools
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from infra.store.scratch import DOWNLOADS, claim_folder
from tasks.foundation.errors import StoreError


class Object(NamedTuple):
    """One object of the workspace, as a listing shows it."""

    key: str
    bytes: int
    etag: str
    modified: dt.datetime  # in UTC


class Mirror:
    """The copies of one workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._copies: dict[Path, tuple[str, int, int]] = {}  # ETag, bytes, and modification time of the copy
        self._lock = threading.Lock()

    def refresh(self, key: str, there: Sequence[Object], fetch: Callable[[dict[Path, Object]], None]) -> Path:
        """Make the copy of `key`, an object or a folder, hold exactly the objects in `there`.

        Args:
            fetch: downloads objects to the given paths; a replaced file must keep its old bytes for readers that have
                it open.

        Raises:
            StoreError: an object's key leads out of the folder.
        """
        wanted = {self._path(found.key): found for found in there}
        path = self._path(key)
        with self._lock:
            for present in [path, *path.rglob("*")]:
                if present not in wanted and present.is_file():
                    present.unlink()
            stale = {place: found for place, found in wanted.items() if not self._holds(place, found)}
            for place in stale:
                place.parent.mkdir(parents=True, exist_ok=True)
            if stale:
                fetch(stale)
            for place, found in stale.items():
                self._copies[place] = (found.etag, found.bytes, place.stat().st_mtime_ns)
        return path

    def _path(self, key: str) -> Path:
        if ".." in key.split("/"):
            raise StoreError(f"object {key!r} cannot be copied here: its name leaves the workspace; remove it")
        return self.folder / key.lstrip("/")

    def _holds(self, path: Path, found: Object) -> bool:
        if not path.is_file():
            return False
        seen = path.stat()
        return self._copies.get(path) == (found.etag, found.bytes, seen.st_mtime_ns) and seen.st_size == found.bytes


_mirrors: dict[str, Mirror] = {}
_making = threading.Lock()


def mirror_of(uri: str) -> Mirror:
    """Return this process's mirror of a workspace."""
    with _making:
        if uri not in _mirrors:
            _mirrors[uri] = Mirror(_folder() / str(len(_mirrors)))
        return _mirrors[uri]


@functools.cache
def _folder() -> Path:
    folder, _ = claim_folder(DOWNLOADS)  # the lock is held until this process ends, killed or not
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork that inherited the handler
        shutil.rmtree(folder, ignore_errors=True)

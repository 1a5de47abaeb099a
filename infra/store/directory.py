"""A workspace in a local directory."""

import contextlib
import errno
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path

from infra.store import kernel_lock
from infra.store.base import Conflict, Holder, Lock, ReadOnlyError, manifests_apart
from infra.store.temporary import PREFIX, temporary_file
from tasks.foundation.errors import StoreError

_READS = 10  # tries: many FUSE mounts find nothing for a moment while another version takes the place of a file
_DELETIONS = 10  # tries for a folder that changes meanwhile
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
# Answers of os.link on file systems without hard links: exFAT, SMB, many FUSE mounts.
NO_LINKS = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EPERM)


class DirectoryStore:
    """A workspace in a local directory. Writes are atomic: temp file, fsync, rename, fsync of the folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.uri = str(self.root)

    def path(self, key: str) -> Path:
        """Return the file of `key`. Raises StoreError for a key that would leave the workspace."""
        path = self.root / key
        if not path.resolve().is_relative_to(self.root):
            raise StoreError(f"key {key!r} leaves the workspace {self.uri}")
        return path

    def read(self, key: str) -> bytes:
        """Return the object's bytes. Raises FileNotFoundError if it is missing, StoreError if it is a folder."""
        path = self.path(key)
        with self._in_place(key):
            for _ in range(_READS):
                try:
                    return path.read_bytes()
                except FileNotFoundError:
                    if not path.exists():
                        raise
            return path.read_bytes()

    def exists(self, key: str) -> bool:
        return self.path(key).is_file()

    def list(self, prefix: str) -> list[str]:
        """Return all keys below the folder `prefix`, sorted; temporary files are not objects.

        Objects that are deleted meanwhile may be in the list or not.
        """
        return sorted(path.relative_to(self.root).as_posix() for path in self._files(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of each object below the folder `prefix`."""
        return {path.relative_to(self.root).as_posix(): path.stat().st_size for path in self._files(prefix)}

    def tags(self, prefix: str) -> dict[str, str]:
        """Return the version tag of the object `prefix`, or of each object below the folder `prefix`."""
        path = self.path(prefix)
        found = {}
        for each in [path] if path.is_file() else self._files(prefix):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                found[each.relative_to(self.root).as_posix()] = _tag(each)
        return found

    def _files(self, prefix: str) -> Iterator[Path]:
        walked = os.walk(self.path(prefix), onerror=_unless_missing)
        return (Path(folder, name) for folder, _, names in walked for name in names if not name.startswith(PREFIX))

    def write(self, key: str, data: bytes) -> None:
        """Create or replace an object, atomically."""
        with self._staged(key) as staged:
            staged.write_bytes(data)

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist yet. Raises Conflict if it does."""
        with self._staged(key, exclusive=True) as staged:
            staged.write_bytes(data)

    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        """Replace an object only while it still holds `expected` (None: only while absent).

        Raises:
            Conflict: another process wrote it in between.
        """
        with kernel_lock.wait_and_hold(self._lock_file(f"{key}.swap")):
            current = self.read(key) if self.exists(key) else None
            if current != expected:
                raise Conflict(f"{self.uri}/{key} was changed by another process; read it again and decide again")
            self.write(key, data)

    def upload(self, source: Path, key: str, instead_of: str | None = None) -> None:
        """Copy a local file to a free key, or replace the version `instead_of` of an object, atomically.

        Raises:
            Conflict: the key holds something else.
        """
        if instead_of is None:
            with self._staged(key, exclusive=True) as staged:
                shutil.copyfile(source, staged)
            return
        with kernel_lock.wait_and_hold(self._lock_file(f"{key}.swap")):
            if self.tags(key).get(key) != instead_of:
                raise Conflict(f"{self.uri}/{key} was changed by another process; look at it again")
            with self._staged(key) as staged:
                shutil.copyfile(source, staged)

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        """Return a local path for reading: a file, or a folder with everything below `key`, at least with `names`."""
        return self.path(key)

    def move(self, prefix: str, target: str) -> None:
        """Rename a folder or an object, atomically. Raises Conflict if `target` exists."""
        destination = self.path(target)
        if destination.exists():
            raise Conflict(f"{self.uri}/{target} exists already")
        with self._writing(target):
            _make_folder(destination.parent)
            os.rename(self.path(prefix), destination)

    def copy(self, prefix: str, target: str, names: Collection[str]) -> None:
        """Give files of a folder, which nobody writes in place, a second name in another folder, manifests last."""
        folders = set[Path]()
        with self._writing(target):
            for name in chain.from_iterable(reversed(manifests_apart(names))):
                source, into = self.path(f"{prefix}/{name}"), self.path(f"{target}/{name}")
                if into.parent not in folders:
                    _make_folder(into.parent)
                    folders.add(into.parent)
                try:
                    os.link(source, into)
                except OSError as error:
                    if error.errno not in NO_LINKS:
                        raise
                    shutil.copyfile(source, into)
                    flush(into)
            for folder in folders:
                flush(folder)

    def delete(self, prefix: str) -> None:
        """Remove an object, or a folder with everything below it; a missing one is no error."""
        path = self.path(prefix)
        with self._writing(prefix):
            if path.is_dir():
                _delete_folder(path)
            else:
                path.unlink(missing_ok=True)

    def discard(self, prefix: str, seen: Mapping[str, str]) -> None:
        """Remove the objects at or below `prefix` that still have the version tags in `seen`."""
        there = self.tags(prefix)
        if there == seen:
            self.delete(prefix)
            return
        for key in there.keys() & seen.keys():
            if there[key] == seen[key]:
                self.delete(key)

    def age_seconds(self, key: str) -> float | None:
        """Return None: file times are from this machine's clock, which may have been changed since."""
        return None

    def peek(self, key: str) -> Holder | None:
        """Return the holder of a lock; None if it is free. Writes nothing, so it works in a read-only workspace."""
        return kernel_lock.look(self.path(_lock_name(key)))

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[Lock]:
        """Hold a lock by name. The kernel frees it when the holder dies, and not before, so no lock is ever stale.

        Raises:
            InUse: another process holds it.
        """
        with kernel_lock.hold(self._lock_file(key), f"{self.uri}/{key}") as held:
            yield held

    def _lock_file(self, key: str) -> Path:
        name = _lock_name(key)
        path = self.path(name)
        with self._writing(name), self._in_place(name):
            _make_folder(path.parent)
            path.open("a", encoding="utf-8").close()
        return path

    @contextlib.contextmanager
    def _staged(self, key: str, exclusive: bool = False) -> Iterator[Path]:
        path = self.path(key)
        with self._in_place(key), self._writing(key):
            _make_folder(path.parent)
        with self._writing(key), _named(path), temporary_file(path.parent) as staged:
            yield staged
            flush(staged)
            if exclusive:
                try:
                    self._place(staged, path)
                except FileExistsError as error:
                    with self._in_place(key):
                        if path.is_dir():
                            raise IsADirectoryError from error
                    raise Conflict(f"{self.uri}/{key} exists already") from error
            else:
                with self._in_place(key):
                    os.replace(staged, path)
            flush(path.parent)

    def _place(self, staged: Path, path: Path) -> None:
        """Move a whole file to a free path, in one step. Raises FileExistsError if the path is taken."""
        try:
            os.link(staged, path)  # unlike rename, link refuses to replace
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            with kernel_lock.wait_and_hold(self._lock_file("create")):  # held for a look and a rename
                if os.path.lexists(path):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
                os.rename(staged, path)

    @contextlib.contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        """Raise ReadOnlyError if the workspace is not writable, for this user or at all."""
        try:
            yield
        except OSError as error:
            elsewhere = error.filename is not None and not str(error.filename).startswith(self.uri)
            if elsewhere or error.errno not in NOT_WRITABLE:
                raise
            raise read_only(self.root / key, error) from error

    @contextlib.contextmanager
    def _in_place(self, key: str) -> Iterator[None]:
        """Raise StoreError if a folder is in the place of a file, or the reverse."""
        try:
            yield
        except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
            what = "is a folder" if isinstance(error, IsADirectoryError) else "is below a file"
            raise StoreError(
                f"{self.uri}/{key} {what}, where a file of the workspace should be; move that away"
            ) from error


def read_only(path: Path, error: OSError) -> ReadOnlyError:
    """Return the error about a path in a workspace for an answer of the system that is `NOT_WRITABLE`."""
    return ReadOnlyError(
        f"{path} can't be written ({error.strerror}): mount the disk of the workspace for writing, give this user "
        "the right to write there, or name another workspace"
    )


def _lock_name(key: str) -> str:
    return f".locks/{key.replace('/', '.')}"


def _delete_folder(path: Path) -> None:
    """Delete a folder, also if others place files in it, or take them away, at the same moment."""
    for _ in range(_DELETIONS):
        try:
            shutil.rmtree(path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
        if not path.exists():
            return
    shutil.rmtree(path)


def _make_folder(path: Path) -> None:
    """Make a folder with its parents. Raises PermissionError, also below one as /proc, which calls them missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise PermissionError(errno.EACCES, "no folder can be made here", error.filename) from error


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Give an error of a write or of fsync, which knows no file, the name of `path`: it tells which disk is full."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _tag(path: Path) -> str:
    found = path.stat()
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def _unless_missing(error: OSError) -> None:
    """Raise the error of a listing, unless another process has deleted the folder meanwhile."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def flush(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

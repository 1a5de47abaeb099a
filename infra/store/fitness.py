"""Refuse a place that can not hold a workspace before the first stage, by requests under a scratch key."""

import os
import shlex
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.store.base import Conflict, Store
from infra.store.directory import DirectoryStore, flush
from infra.store.unfinished import PREFIX, temporary_file
from tasks.foundation.errors import ConfigError, FailureClass, StoreError, classify

_LEVELS = 2  # folders this deep are searched for links; Millrace itself makes the deeper ones

_fit: set[Path] = set()


def require_fit(store: Store) -> None:
    """Check once a process that the folder of a workspace has no links, and its file system all that a store needs.

    A bucket is checked by the stage health. Everything written is deleted.

    Raises:
        ConfigError: a folder is a link, or the file system lacks an operation.
        StoreError: the file system does not answer.
        OSError: the disk is full.
    """
    if not isinstance(store, DirectoryStore) or store.root in _fit or not store.root.is_dir():
        return
    for link in _linked(store.root, _LEVELS):
        there = shlex.join(["mount", "--bind", str(link.resolve()), str(link)])
        raise ConfigError(
            f"{link} is a link to another folder, which a workspace does not follow: move that folder here, or "
            f"mount it in the place of the link: {there}"
        )
    _try_operations(store.root)
    _fit.add(store.root)


def _linked(folder: Path, levels: int) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() and entry.is_dir():
                yield Path(entry.path)
            elif levels > 1 and entry.is_dir(follow_symlinks=False):
                yield from _linked(Path(entry.path), levels - 1)


def _try_operations(root: Path) -> None:
    """Do all that a store does with files, except hard links, for which it has a replacement."""
    does = "lock a file"
    try:
        with temporary_file(root) as staged:
            does = "write a folder to the disk (fsync)"
            flush(root)
            does = "rename a file"
            renamed = root / f"{PREFIX}{uuid.uuid4().hex}"
            os.rename(staged, renamed)
            renamed.unlink()
    except PermissionError as error:
        if does == "lock a file":  # the user's rights, which the first write explains
            return
        raise ConfigError(_lacks(root, does, error)) from error
    except OSError as error:
        failure = classify(error)
        if failure is FailureClass.DISK:
            raise
        kind = StoreError if failure is FailureClass.STORE else ConfigError
        raise kind(_lacks(root, does, error)) from error


def _lacks(root: Path, does: str, error: OSError) -> str:
    return (
        f"the file system of {root} can't {does}: {error.strerror}. A workspace needs that; use a local disk, or "
        "another file system of the table in docs/operations.md"
    )


def find_broken_guarantee(store: Store, key: str) -> str:
    """Return the broken guarantee of the store; empty if it keeps all. The caller deletes `key`.

    Raises:
        StoreError, OSError: an operation failed.
    """
    store.create(key, b"1")
    if store.read(key) != b"1":
        return "an object reads differently than it was written"
    if succeeds(lambda: store.create(key, b"2")):
        return "an existing object was created again"
    store.swap(key, b"2", expected=b"1")
    if store.read(key) != b"2" or key not in store.list(key.rpartition("/")[0]):
        return "a swapped object is not read or listed as swapped"
    if succeeds(lambda: store.swap(key, b"3", expected=b"1")):
        return "an object was swapped although it had changed"
    return ""


def succeeds(act: Callable[[], None]) -> bool:
    """Return True if a conditional operation succeeds, False for a Conflict."""
    try:
        act()
    except Conflict:
        return False
    return True
